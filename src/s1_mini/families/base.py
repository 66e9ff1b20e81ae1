"""The interface behind which every family stands, and the tensors that cross it.

A `Family` is what the registry names: it describes a checkpoint from its small files and opens it. A `LoadedModel` is
what it opens. All else talks to these names only. Rows are slots: a model holds the state of B sequences side by side,
and a row that is not active changes nothing that anyone sees. Importing this loads no torch.
Shapes: B slots, S prompt columns, K codebooks, F frames.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Protocol

if TYPE_CHECKING:
    import torch
    from pydantic import BaseModel
    from torch import Tensor, nn

    from s1_mini.capacity.memory import Demand
    from s1_mini.capacity.sizes import Formats, Sizes
    from s1_mini.codecs.base import Codec
    from s1_mini.types import Voice
    from s1_mini.voices.format import VoiceFormat
    from s1_mini.weights.members import Member

ModelPrecision = Literal["keep", "float32", "float16", "bfloat16"]
CodecPrecision = Literal["float32", "float16"]
Form = Literal["published", "compact"]
Size = Literal["tiny", "full"]


@dataclass(frozen=True)
class Description:
    """What the small files of a checkpoint say of it; no weight is read."""

    sample_rate: int  # Hz of the sound
    voice: VoiceFormat  # what a voice is made of, and what encodes it


@dataclass(frozen=True)
class Placement:
    """Where a checkpoint is opened, and in which number formats."""

    device: torch.device
    dtype: torch.dtype  # of the models
    codec_dtype: torch.dtype  # of what makes sound
    weights_dtype: torch.dtype | None = None  # of the large products, where it is a narrower one
    kv_dtype: torch.dtype | None = None  # of keys and values, likewise


@dataclass(frozen=True)
class Conversion:
    """How a checkpoint is written in the compact form."""

    precision: ModelPrecision = "keep"
    codec_precision: CodecPrecision = "float16"
    decode_only: bool = False  # without what only encodes references


@dataclass(frozen=True)
class Check:
    """One comparison: the largest absolute difference of real numbers, or the share of equal tokens."""

    name: str
    difference: float | None = None
    agreement: float | None = None
    passed: bool = False


class Family(Protocol):
    """A family as the registry knows it. Neither importing its module nor `settings` and `describe` load torch."""

    title: str  # of what it was made for, as people call it
    settings: type[BaseModel]  # which are settings of the engine, too
    needed_files: Sequence[Sequence[str]]  # of a checkpoint directory: each by one of its names

    def describe(self, directory: Path) -> Description:
        """Read the small files of a checkpoint directory. Raises `CheckpointError`."""

    def sizes(self, directory: Path | None, formats: Formats, prefix_cache_bytes: int) -> Sizes:
        """Count what a checkpoint directory takes, or without one what was published. Raises `CheckpointError`."""

    def open(self, directory: Path, placement: Placement, settings: Any) -> LoadedModel:
        """Open a checkpoint directory; `settings` has the fields of the family's own. Raises `CheckpointError`."""

    def files(self, directory: Path, conversion: Conversion) -> list[Member]:
        """Give all files of a checkpoint but its voices, in the compact form.

        The weights are checked against their config now, and read when their chunks are asked for. Raises
        `CheckpointError`.
        """

    def verify(
        self, directory: Path, oracle: Mapping[str, Any], device: torch.device, tolerance: float
    ) -> Iterator[Check] | None:
        """Open a checkpoint and give its checks against what the original computed; None if the oracle holds nothing.

        Raises `CheckpointError`; going through the checks raises whatever an oracle of another form leads to.
        """

    def write_random(self, directory: Path, *, size: Size, form: Form, seed: int) -> None:
        """Write a new checkpoint directory with random weights. Raises `CheckpointFileError`."""


@dataclass(frozen=True)
class Prompt:
    """What a model is asked to continue."""

    columns: Tensor  # int64 [K + 1, S]: main token, then codes
    num_shared: int  # leading columns that depend on the voice alone, not on the text
    prefix_key: str = ""  # the same for prompts that share those columns


@dataclass(frozen=True)
class Prefix:
    """What a model remembers of the leading columns of a prompt, ready to be put into any slot."""

    columns: int
    num_bytes: int
    state: Any  # the family's own


@dataclass(frozen=True)
class SamplingTensors:
    """The sampling parameters of all rows, on the device."""

    temperature: Tensor  # [B]
    top_p: Tensor  # [B]
    repetition_penalty: Tensor  # [B]
    uniforms: Tensor  # [B, frames, draws per frame] in [0, 1)


@dataclass(frozen=True)
class Frames:
    """One frame of every row; only active rows mean anything. One table, so that it comes to the host in one go."""

    made: Tensor  # int64 [B, K + 3]: main token, K codes, stop, valid

    @property
    def codes(self) -> Tensor:
        """Codes [B, K]."""
        return self.made[:, 1:-2]

    @property
    def stop(self) -> Tensor:
        """Whether this is no frame but the end of the utterance: [B] bool."""
        return self.made[:, -2] != 0

    @property
    def valid(self) -> Tensor:
        """Whether the logits were finite: [B] bool."""
        return self.made[:, -1] != 0


class SpeechModel(Protocol):
    """Text and voice in, frames out. `State` is the family's own."""

    num_codebooks: int
    max_columns: int  # prompt and frames of one sequence together
    num_bytes: int  # of the weights
    column_bytes: int  # that a slot needs for each of its columns
    device: torch.device

    def prompt(self, text: str, voices: Sequence[Voice]) -> Prompt:
        """Write the prompt for one sentence piece. Host only."""

    def own_voice(self, codes: Tensor, text: str) -> Voice:
        """Give the voice that was heard in what it made itself: codes [K, F] of `text`."""

    def allocate(self, slots: int, columns: int) -> Any:
        """Make the state of `slots` sequences of up to `columns` columns; every tensor, once."""

    def prefill(self, state: Any, slot: int, columns: Tensor, start: int) -> None:
        """Read prompt columns [K + 1, n] into `slot` from column `start` on."""

    def prefill_rows(self, state: Any, columns: Tensor, slots: Tensor, positions: Tensor, span: int) -> None:
        """Read columns [N, K + 1] of any prompts into `slots` at `positions` [N], nothing at -1; none beyond `span`."""

    def save(self, state: Any, slot: int, columns: int) -> Prefix:
        """Copy what `slot` holds of its first `columns` columns."""

    def load(self, state: Any, slot: int, prefix: Prefix) -> None:
        """Put a saved prefix into `slot`, as if its columns had just been read."""

    def activate(self, state: Any, slot: int, prompt: Prompt) -> None:
        """Let `slot` generate, once all columns of its prompt but the last are read."""

    def pause(self, state: Any, slot: int) -> None:
        """Keep `slot` from generating until `resume`; nothing it holds is lost."""

    def resume(self, state: Any, slot: int) -> None:
        """Let `slot` go on where it was paused."""

    def release(self, state: Any, slot: int) -> None:
        """Stop `slot` from generating; it may be given to another sequence."""

    def step(self, state: Any, sampling: SamplingTensors, span: int, rows: int | None = None) -> Frames:
        """Generate one frame for every active row of the first `rows`, or of all.

        No row may have more than `span` columns, and none beyond `rows` may be active. What a row makes does not depend
        on `rows`; on a CPU not by a bit.
        """


class Decoder(Protocol):
    """Streams of sound that a CUDA graph can be made of."""

    def push_where(self, codes: Tensor, chosen: Tensor, fresh: Tensor) -> Tensor:
        """Decode the next frames [n, K, F] of the rows `chosen` [n], those that are `fresh` [n] from their beginning.

        Gives samples [n, T]. All of it lies on the device. Nothing is checked, no length counted.
        """


class LoadedModel(Protocol):
    """A checkpoint that is open: what speaks, and what encodes voices."""

    @property
    def model(self) -> SpeechModel:
        """What makes frames."""

    @property
    def codec(self) -> Codec:
        """What makes sound of them."""

    @property
    def networks(self) -> Sequence[nn.Module]:
        """What has blocks that may be compiled."""

    def demand(self, prefix_cache_bytes: int) -> Demand:
        """Tell what slots of it take, wherever its weights lie."""

    def needed_positions(self, reference_s: float, text_bytes: int) -> int:
        """Give the positions that a reference of so many seconds, a piece of text and its speech take."""

    def open_decoder(self, rows: int) -> Decoder:
        """Begin `rows` streams of sound."""

    def condition(self, wave: Tensor) -> Generator[None, None, dict[str, Tensor]]:
        """Encode a recording [samples] to the tensors of a voice, with a `yield` after each bounded piece of work.

        Raises `CapacityError` for one that is too long, and what the first use may need to load.
        """
