"""The config of a cascade: `config.json` and `generation_config.json`, checked before any weight is read.

Keys are those of transformers 5.17; absent keys have the default values of transformers.
"""

from __future__ import annotations

import reprlib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from s1_mini.codecs.encodec.config import EncodecConfig
from s1_mini.exceptions import CheckpointMismatchError
from s1_mini.families.cascade.settings import STAGES
from s1_mini.layers.json_config import MAX_LAYERS, MAX_SIZE, number, read_fields, read_flag, read_size, size
from s1_mini.weights.directory import read_json

NUM_COARSE = 2  # codebooks of the coarse model
# For each stage, its part of config.json, and the published numbers of input and output ids.
PARTS = {"semantic": "semantic_config", "coarse": "coarse_acoustics_config", "fine": "fine_acoustics_config"}
VOCABULARIES = {"semantic": (129_600, 10_048), "coarse": (12_096, 12_096), "fine": (1056, 1056)}

# The possible sets of files of a checkpoint with one file per model: files that `convert` writes, suno's large models,
# and suno's small models. suno does not publish the codec, which is facebook/encodec_24khz.
COMPACT = {stage: f"{stage}.safetensors" for stage in STAGES}
SETS = (
    COMPACT,
    {"semantic": "text_2.pt", "coarse": "coarse_2.pt", "fine": "fine_2.pt", "codec": COMPACT["codec"]},
    {"semantic": "text.pt", "coarse": "coarse.pt", "fine": "fine.pt", "codec": COMPACT["codec"]},
)
_SIZES = ("input_vocab_size", "output_vocab_size", "block_size")


@dataclass(frozen=True)
class GPTConfig:
    """The sizes of one of the three transformers, a GPT-2 with learned positions."""

    num_layers: int
    num_heads: int
    width: int
    block_size: int  # positions
    input_size: int  # input ids per codebook
    output_size: int  # output ids
    bias: bool  # whether linear layers have biases, and in causal models also norms
    is_causal: bool = True

    @property
    def head_dim(self) -> int:
        return self.width // self.num_heads

    def kv_bytes(self, item: float) -> float:
        """Return the bytes of keys and values per position, for numbers of `item` bytes."""
        return 2 * self.num_layers * self.width * item


def _positive(default: float, key: str) -> Any:
    """Declare a positive number; its default value is also allowed."""
    return number(default, key, lambda value: value == default or 0 < value <= MAX_SIZE, "a positive number")


@dataclass(frozen=True)
class Numbers:
    """Tokens, rates and lengths that the stages share, by part and key of generation_config.json.

    The defaults are the values of all published checkpoints.
    """

    text_offset: int = size(10_048, "semantic_config.text_encoding_offset")  # added to the tokenizer's ids
    text_pad: int = size(129_595, "semantic_config.text_pad_token")
    semantic_infer: int = size(129_599, "semantic_config.semantic_infer_token")
    # Number of semantic tokens; the id after them is the end token, and also the padding.
    semantic_size: int = size(10_000, "semantic_config.semantic_vocab_size")
    # Maximum number of text tokens, and of semantic tokens of the voice.
    max_text: int = size(256, "semantic_config.max_input_semantic_length")
    max_semantic: int = size(768, "semantic_config.max_new_tokens")  # maximum number of generated semantic tokens
    semantic_rate: float = _positive(49.9, "semantic_config.semantic_rate_hz")  # tokens per second
    # Padding of the coarse model's semantic tokens.
    coarse_pad: int = size(12_048, "coarse_acoustics_config.coarse_semantic_pad_token")
    coarse_infer: int = size(12_050, "coarse_acoustics_config.coarse_infer_token")
    coarse_rate: float = _positive(75.0, "coarse_acoustics_config.coarse_rate_hz")  # frames per second
    # The next three are numbers per window: semantic tokens and earlier codes in its input, and codes it generates.
    max_coarse_text: int = size(256, "coarse_acoustics_config.max_coarse_input_length")
    max_coarse_history: int = size(630, "coarse_acoustics_config.max_coarse_history")
    window: int = size(60, "coarse_acoustics_config.sliding_window_len")
    codebook_size: int = size(1024, "codebook_size")  # number of codes; in the fine model also the id for "no code"
    fine_window: int = size(1024, "fine_acoustics_config.max_fine_input_length")  # frames
    # Frames from one window to the next; also the maximum number of the voice's frames in a window.
    fine_hop: int = size(512, "fine_acoustics_config.max_fine_history_length")
    num_books: int = size(8, "fine_acoustics_config.n_fine_codebooks")
    # An end probability above this ends generation; 0: off.
    min_eos_p: float = _positive(0.0, "semantic_config.min_eos_p")
    fine_temperature: float = _positive(0.0, "fine_acoustics_config.temperature")  # 0: greedy

    @property
    def ratio(self) -> float:
        """Number of codes of the coarse model per semantic token."""
        return self.coarse_rate / self.semantic_rate * NUM_COARSE

    @property
    def max_semantic_history(self) -> int:
        """Maximum number of past semantic tokens that a coarse window attends to."""
        return int(self.max_coarse_history / self.ratio)

    @property
    def prompt_size(self) -> int:
        """Number of positions of the semantic model's prompt: those that text and voice share, and the infer token."""
        return self.max_text + 1

    def num_coarse(self, num_semantic: int) -> int:
        """Return the number of codes of the coarse model for `num_semantic` tokens."""
        return round(int(num_semantic * self.ratio / NUM_COARSE) * NUM_COARSE)


@dataclass(frozen=True)
class CascadeConfig:
    """The config of a whole checkpoint."""

    semantic: GPTConfig
    coarse: GPTConfig
    fine: GPTConfig
    codec: EncodecConfig
    numbers: Numbers

    @property
    def num_coarse_ids(self) -> int:
        """Number of ids that the coarse model can generate: codes of the first codebook, then all later ids.

        As in transformers (`AlternatingCodebooksLogitsProcessor`), all later ids belong to the second codebook, even if
        they are more than its codes; a code is then the id modulo the size of the codebook. Trained weights never
        sample the extra ids.
        """
        return self.coarse.output_size - self.numbers.semantic_size

    def __post_init__(self) -> None:
        numbers = self.numbers
        last = numbers.semantic_size + NUM_COARSE * numbers.codebook_size
        windows = numbers.max_coarse_text + 1 + numbers.max_coarse_history + numbers.window
        text = max(numbers.semantic_infer, numbers.text_pad, numbers.semantic_size) + 1
        needed = {
            "semantic": (text, numbers.semantic_size + 1, numbers.prompt_size + 1),
            "coarse": (max(numbers.coarse_infer + 1, numbers.coarse_pad + 1, last), last, windows),
            "fine": (numbers.codebook_size + 1, numbers.codebook_size, numbers.fine_window),
        }
        for stage, least in needed.items():
            model: GPTConfig = getattr(self, stage)
            sizes = (model.input_size, model.output_size, model.block_size)
            for name, given, needs in zip(_SIZES, sizes, least, strict=True):
                if given < needs:
                    raise CheckpointMismatchError(
                        f"config.json: {PARTS[stage]}.{name}={given}; generation_config.json needs at least {needs}"
                    )
        if self.coarse.input_size < self.coarse.output_size:  # each output id is the next input
            raise CheckpointMismatchError(
                f"config.json: coarse_acoustics_config.input_vocab_size={self.coarse.input_size} must not be smaller "
                f"than output_vocab_size={self.coarse.output_size}"
            )
        if self.codec.codebook_size != numbers.codebook_size:
            raise CheckpointMismatchError(
                f"config.json: the codec's codebooks have {self.codec.codebook_size} codes, but the models expect "
                f"{numbers.codebook_size}"
            )


def read_values(directory: Path, parts: Mapping[str, Mapping[str, Any]] | None = None) -> dict[str, Any]:
    """Read config.json. `parts` has default values, by part and key, for absent keys. Raises `CheckpointError`."""
    values = read_json(directory / "config.json")
    for name, part in (parts or {}).items():
        values[name] = {**part, **_part(values, name, "config.json")}
    return values


def read_generation(directory: Path) -> dict[str, Any] | None:
    """Read generation_config.json; return None if the file does not exist. Raises `CheckpointError`."""
    path = directory / "generation_config.json"
    return read_json(path) if path.exists() else None


def read_cascade_config(directory: Path) -> CascadeConfig:
    """Read config.json and generation_config.json of a checkpoint directory. Raises `CheckpointError`."""
    return make_config(read_values(directory), read_generation(directory))


def make_config(values: Mapping[str, Any], generation: Mapping[str, Any] | None = None) -> CascadeConfig:
    """Build the config from the content of both files. Raises `CheckpointMismatchError`."""
    fine = _part(values, PARTS["fine"], "config.json")
    for name, expected in (("n_codes_total", 8), ("n_codes_given", 1)):
        if fine.get(name, expected) != expected:
            raise CheckpointMismatchError(
                f"config.json: {PARTS['fine']}.{name}={reprlib.repr(fine[name])} is not supported; "
                f"it must be {expected}"
            )
    return CascadeConfig(
        semantic=_gpt(values, "semantic"),
        coarse=_gpt(values, "coarse"),
        fine=_gpt(values, "fine"),
        codec=EncodecConfig.from_json(_part(values, "codec_config", "config.json"), "config.json: codec_config"),
        numbers=Numbers() if generation is None else _numbers(generation),
    )


def _gpt(values: Mapping[str, Any], stage: str) -> GPTConfig:
    name, (inputs, outputs) = PARTS[stage], VOCABULARIES[stage]
    part = _part(values, name, "config.json")

    def size(key: str, default: int, most: int = MAX_SIZE) -> int:
        return read_size(f"config.json: {name}.{key}", part.get(key, default), most)

    config = GPTConfig(
        num_layers=size("num_layers", 12, MAX_LAYERS),
        num_heads=size("num_heads", 12),
        width=size("hidden_size", 768),
        block_size=size("block_size", 1024),
        input_size=size("input_vocab_size", inputs),
        output_size=size("output_vocab_size", outputs),
        bias=read_flag(f"config.json: {name}.bias", part.get("bias", True)),
        is_causal=stage != "fine",
    )
    if config.width % (2 * config.num_heads):
        raise CheckpointMismatchError(
            f"config.json: {name}.hidden_size={config.width} must be a multiple of 2 × num_heads={config.num_heads}"
        )
    return config


def _numbers(values: Mapping[str, Any]) -> Numbers:
    parts = {name: _part(values, name, "generation_config.json") for name in PARTS.values()}
    inner = {f"{name}.{key}": value for name, part in parts.items() for key, value in part.items()}
    numbers = Numbers(**read_fields(Numbers, {**values, **inner}, "generation_config.json"))
    if numbers.fine_temperature == 1:
        numbers = replace(numbers, fine_temperature=0.0)  # as in transformers, where 1 makes fine codes greedy
    _check(numbers, values)
    return numbers


def _check(numbers: Numbers, values: Mapping[str, Any]) -> None:
    """Raise `CheckpointMismatchError` for unsupported numbers."""
    eos = _part(values, PARTS["semantic"], "generation_config.json").get("eos_token_id", numbers.semantic_size)
    books = _part(values, PARTS["coarse"], "generation_config.json").get("n_coarse_codebooks", NUM_COARSE)
    faults = (
        (
            eos != numbers.semantic_size,
            f"semantic_config.eos_token_id={reprlib.repr(eos)} differs from semantic_vocab_size",
        ),
        (books != NUM_COARSE, f"coarse_acoustics_config.n_coarse_codebooks={reprlib.repr(books)} is not {NUM_COARSE}"),
        (numbers.window % NUM_COARSE, f"sliding_window_len={numbers.window} is odd"),
        (numbers.max_coarse_history % NUM_COARSE, f"max_coarse_history={numbers.max_coarse_history} is odd"),
        (numbers.fine_window != 2 * numbers.fine_hop, "max_fine_input_length must be twice max_fine_history_length"),
        (numbers.num_books != 8, f"n_fine_codebooks={numbers.num_books} is not 8"),
    )
    for is_fault, fault in faults:
        if is_fault:
            raise CheckpointMismatchError(f"generation_config.json: {fault}; this is not supported")


def _part(values: Mapping[str, Any], name: str, file: str) -> Mapping[str, Any]:
    part = values.get(name)
    if part is None:
        return {}
    if not isinstance(part, Mapping):
        raise CheckpointMismatchError(f"{file}: {name} must be an object, not {type(part).__name__}")
    return part
