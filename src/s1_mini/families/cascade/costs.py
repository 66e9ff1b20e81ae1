"""The memory and the work of a cascade, computed from its config."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from s1_mini.capacity.sizes import Cost, Formats, MemoryRequirement, Sizes, StageSizes
from s1_mini.codecs.encodec.model import Encodec
from s1_mini.families.cascade.config import NUM_COARSE, make_config
from s1_mini.families.cascade.policies import CoarseWindows
from s1_mini.families.cascade.random import RECIPES
from s1_mini.families.cascade.weights import read_config
from s1_mini.runtime.rows import whole_spans
from s1_mini.weights.fit import count, skeleton

SENTENCE_FRAMES = 375  # assumed frames of speech in a window of the fine model: a sentence of five seconds
LIVE_TENSORS = 4  # tensors of a codec layer in memory at once: input, input with past, activation, output
RANDOM_BYTES = 4  # bytes of a random number


def measure_sizes(directory: Path | None, formats: Formats) -> Sizes:
    """Return the memory and the work of a checkpoint; of bark-small if `directory` is None.

    Raises `CheckpointError`.
    """
    config = read_config(directory) if directory else make_config(RECIPES["small"].config)
    numbers, codec = config.numbers, config.codec
    passes = numbers.num_books - NUM_COARSE
    gpts = {"semantic": config.semantic, "coarse": config.coarse, "fine": config.fine}
    heads = {  # number of weights
        "semantic": config.semantic.width * (numbers.semantic_size + 1),
        "coarse": config.coarse.width * NUM_COARSE * numbers.codebook_size,
        "fine": config.fine.width * passes * numbers.codebook_size,
    }
    # Each block has 4 · width² weights in attention and 8 · width² in the MLP.
    blocks = {name: 12 * gpt.num_layers * gpt.width**2 for name, gpt in gpts.items()}
    read_bytes = {name: formats.large * blocks[name] + formats.weights * heads[name] for name in gpts}
    codec_weights = count(skeleton(lambda: Encodec(codec, encodes=False).decoder))

    def tokens(name: str, steps_per_frame: float, read_again: float = 0) -> Callable[[int, int], Cost]:
        """Return a function for the cost of a frame, which takes `steps_per_frame` steps.

        `read_again` is the number of positions, per step, that windows prefill again.
        """
        gpt = gpts[name]

        def step(rows: int, span: int) -> Cost:
            num_bytes = read_bytes[name] + rows * span * gpt.kv_bytes(formats.kv)
            attends = 4 * gpt.num_layers * gpt.width * span
            operations = rows * (2 * (heads[name] + blocks[name] * (1 + read_again)) + attends)
            return Cost(steps_per_frame * num_bytes, steps_per_frame * operations)

        return step

    def fine(rows: int, _: int) -> Cost:
        frames = numbers.fine_window / SENTENCE_FRAMES  # frames that are computed per frame of speech
        attends = 4 * config.fine.num_layers * config.fine.width * numbers.fine_window
        operations = rows * passes * frames * (2 * blocks["fine"] + attends) + 2 * heads["fine"] * rows
        return Cost(passes * read_bytes["fine"] / SENTENCE_FRAMES, operations)

    def sound(rows: int, _: int) -> Cost:
        # Layers run at rates between frames and samples; the factors are estimates.
        return Cost(formats.codec * codec_weights / 16, 2 * rows * codec_weights * 32)

    def weight_bytes(name: str) -> float:
        gpt = gpts[name]
        if name == "fine":
            return read_bytes[name] + formats.weights * numbers.num_books * gpt.width * gpt.input_size
        return read_bytes[name] + formats.weights * (gpt.width * gpt.input_size + 1024 * 768)

    window = (numbers.max_coarse_text + numbers.max_coarse_history) / numbers.window
    past = codec.num_lstm_layers * 2 * codec.width + 2 * codec.samples_per_frame * codec.num_filters
    window_numbers = numbers.fine_window * config.fine.width  # fp32 numbers of one activation of the fine model
    copies = {name: round(num_bytes) // 8 for name, num_bytes in read_bytes.items()}
    # The coarse model works in windows of one length, whatever the positions of a slot.
    windows = CoarseWindows(numbers)
    coarse_positions = 1 + min(whole_spans(windows.most_positions), config.coarse.block_size)
    semantic_steps = tokens("semantic", numbers.semantic_rate / numbers.coarse_rate)
    max_positions = numbers.prompt_size + numbers.max_semantic - 1
    return Sizes(
        stages={
            "semantic": StageSizes(weight_bytes("semantic"), semantic_steps, "memory"),
            "coarse": StageSizes(weight_bytes("coarse"), tokens("coarse", NUM_COARSE, window), "memory"),
            "fine": StageSizes(weight_bytes("fine"), fine, "compute"),
            "codec": StageSizes(formats.codec * codec_weights, sound, "compute", is_single=formats.codec == 4),
        },
        demands={
            "semantic": MemoryRequirement(
                position=round(config.semantic.kv_bytes(formats.kv)),
                copies=copies["semantic"],
                fixed_slot=RANDOM_BYTES * numbers.max_semantic,
            ),
            "coarse": MemoryRequirement(
                copies=copies["coarse"],
                fixed_slot=coarse_positions * round(config.coarse.kv_bytes(formats.kv))
                + RANDOM_BYTES * windows.most_steps,
            ),
            "fine": MemoryRequirement(copies=8 * LIVE_TENSORS * 4 * window_numbers + copies["fine"]),
            "codec": MemoryRequirement(
                stream_row=4 * past, frame=4 * LIVE_TENSORS * codec.samples_per_frame * codec.num_filters
            ),
        },
        frame_s=1 / numbers.coarse_rate,
        max_positions=min(config.semantic.block_size, max_positions),
        needed_positions=lambda _, __: max_positions,
    )
