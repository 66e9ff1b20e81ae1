"""The memory and work of a cascade, counted from its config."""

from __future__ import annotations

from collections.abc import Callable

from s1_mini.capacity.sizes import Cost, Demand, Formats, Sizes, StageSizes
from s1_mini.codecs.encodec.config import EncodecConfig
from s1_mini.codecs.encodec.model import Encodec
from s1_mini.families.cascade.config import NUM_COARSE, CascadeConfig, GPTConfig
from s1_mini.weights.fit import skeleton

SENTENCE_FRAMES = 375  # of a window of the fine model that are speech: a sentence of five seconds
LIVE_TENSORS = 4  # of a layer of the codec: input, with its past, activation, output
DRAW_BYTES = 4  # a random number


def block_weights(config: GPTConfig) -> int:
    """Return the weights of all blocks: four products of attention, eight of the MLP."""
    return 12 * config.num_layers * config.width**2


def kv_bytes(config: GPTConfig, item: float) -> float:
    """Return the bytes of keys and values of one position."""
    return 2 * config.num_layers * config.width * item


def codec_weights(config: EncodecConfig) -> int:
    """Return the weights of the decoder."""
    with skeleton():
        codec = Encodec(config, encodes=False)
    return sum(weight.numel() for weight in codec.decoder.parameters())


def measure_sizes(config: CascadeConfig, formats: Formats, prefix_cache_bytes: int) -> Sizes:
    """Count a checkpoint of this config."""
    numbers = config.numbers
    semantic_head = config.semantic.width * (numbers.semantic_size + 1)
    coarse_head = config.coarse.width * NUM_COARSE * numbers.codebook_size

    def weights(gpt: GPTConfig, head: int) -> float:
        return formats.large * block_weights(gpt) + formats.weights * head

    def tokens(gpt: GPTConfig, head: int, a_frame: float, read_again: float = 0) -> Callable[[int, int], Cost]:
        """Cost of a frame: `a_frame` steps, each of which reads `read_again` positions of its window beside its own."""

        def step(rows: int, span: int) -> Cost:
            num_bytes = weights(gpt, head) + rows * span * kv_bytes(gpt, formats.kv)
            attends = 4 * gpt.num_layers * gpt.width * span
            operations = rows * (2 * (head + block_weights(gpt) * (1 + read_again)) + attends)
            return Cost(a_frame * num_bytes, a_frame * operations)

        return step

    per_frame = numbers.semantic_rate / numbers.coarse_rate
    window = (numbers.max_coarse_text + numbers.max_coarse_history) / numbers.window
    passes = numbers.num_books - NUM_COARSE
    fine_heads = passes * config.fine.width * numbers.codebook_size
    fine_bytes, codec_numbers = weights(config.fine, fine_heads), codec_weights(config.codec)

    def fine(rows: int, _: int) -> Cost:
        frames = numbers.fine_window / SENTENCE_FRAMES  # that are computed for one that is heard
        attends = 4 * config.fine.num_layers * config.fine.width * numbers.fine_window
        operations = rows * passes * frames * (2 * block_weights(config.fine) + attends) + 2 * fine_heads * rows
        return Cost(passes * fine_bytes / SENTENCE_FRAMES, operations)

    def sound(rows: int, _: int) -> Cost:
        # Each weight is used once in a step of its own rate, which grows to that of the samples.
        return Cost(formats.codec * codec_numbers / 16, 2 * rows * codec_numbers * 32)

    model_bytes = {
        "semantic": weights(config.semantic, semantic_head),
        "coarse": weights(config.coarse, coarse_head),
        "fine": fine_bytes,
    }
    codec = config.codec
    past = codec.num_lstm_layers * 2 * codec.width + 2 * codec.samples_per_frame * codec.num_filters
    window_numbers = numbers.fine_window * config.fine.width  # of the fine model, at four bytes
    embeddings = [gpt.width * gpt.input_size for gpt in (config.semantic, config.coarse)]
    embedded = [formats.weights * (size + 1024 * 768) for size in embeddings]
    return Sizes(
        stages={
            "semantic": StageSizes(
                model_bytes["semantic"] + embedded[0], tokens(config.semantic, semantic_head, per_frame), "memory"
            ),
            "coarse": StageSizes(
                model_bytes["coarse"] + embedded[1], tokens(config.coarse, coarse_head, NUM_COARSE, window), "memory"
            ),
            "fine": StageSizes(
                fine_bytes + formats.weights * numbers.num_books * config.fine.width * config.fine.input_size,
                fine,
                "compute",
            ),
            "codec": StageSizes(formats.codec * codec_numbers, sound, "compute", is_single=formats.codec == 4),
        },
        demands={
            "semantic": Demand(
                position=round(kv_bytes(config.semantic, formats.kv)),
                prefix_cache=prefix_cache_bytes,
                copies=round(model_bytes["semantic"]) // 8,
            ),
            "coarse": Demand(
                position=round(kv_bytes(config.coarse, formats.kv)) + NUM_COARSE * DRAW_BYTES,
                copies=round(model_bytes["coarse"]) // 8,
            ),
            "fine": Demand(copies=8 * LIVE_TENSORS * 4 * window_numbers + round(fine_bytes) // 8),
            "codec": Demand(stream_row=4 * past, frame=4 * LIVE_TENSORS * codec.samples_per_frame * codec.num_filters),
        },
        frame_s=1 / numbers.coarse_rate,
        max_positions=min(config.semantic.block_size, numbers.prompt_size + numbers.max_semantic - 1),
        needed_positions=lambda _, __: numbers.prompt_size + numbers.max_semantic - 1,
    )
