"""The interface of a model family.

The registry names a `Family`, which describes a checkpoint from its small files and opens it as a `LoadedModel`. That
writes prompts, encodes voices, and builds a `StageChain` of stages. Other packages use these names only. Importing this
module does not load torch.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Protocol

from s1_mini.exceptions import ParameterError, VerificationError
from s1_mini.types import DEFAULT_SAMPLING

if TYPE_CHECKING:
    import numpy as np
    import torch
    from pydantic import BaseModel
    from torch import Tensor, nn

    from s1_mini.capacity.sizes import Formats, Sizes
    from s1_mini.core.prompt import PromptTokens
    from s1_mini.core.stage import StagePolicy
    from s1_mini.runtime.stage import Stage
    from s1_mini.types import SamplingParams, Voice
    from s1_mini.voices.format import VoiceFormat
    from s1_mini.weights.write import ArchiveEntry

ModelPrecision = Literal["keep", "float32", "float16", "bfloat16", "int8"]
CodecPrecision = Literal["float32", "float16", "int8"]
Form = Literal["published", "compact"]


@dataclass(frozen=True)
class Description:
    """A checkpoint's properties, read from its small files without any weights."""

    sample_rate: int  # Hz of the audio
    voice: VoiceFormat  # its tensors, and the encoder that makes them
    sampling: Sequence[str] = ("temperature", "top_p", "repetition_penalty")  # the parameters that have an effect
    max_piece_bytes: int = 2**20  # of text in one piece; longer ones are split

    def check_sampling(self, sampling: SamplingParams) -> None:
        """Raise `ParameterError` for a parameter that was changed although it has no effect."""
        for name in ("temperature", "top_p", "top_k", "repetition_penalty"):
            if name not in self.sampling and getattr(sampling, name) != getattr(DEFAULT_SAMPLING, name):
                allowed = f"supports {', '.join(self.sampling)}" if self.sampling else "does not sample"
                raise ParameterError(name, f"is not supported by this model, which {allowed}; omit it")


@dataclass(frozen=True)
class Placement:
    """Where a checkpoint is opened, and in which number formats."""

    device: torch.device
    dtype: torch.dtype  # of the models
    codec_dtype: torch.dtype  # of the codec or vocoder
    weights_dtype: torch.dtype | None = None  # of the large products, where it is a narrower one
    kv_dtype: torch.dtype | None = None  # of keys and values, where narrower
    # By name, of stages on another device; `meta` for one in another process, whose weights are not read here.
    devices: Mapping[str, torch.device] = field(default_factory=dict)
    batch_invariant: bool = False  # whether a row's bits must not depend on the rest of its batch, if the family can

    def of(self, stage: str) -> torch.device:
        return self.devices.get(stage, self.device)

    def beside(self, stage: str) -> torch.device:
        """Return the device for work next to a stage: the stage's own, or the common one if it is not in memory."""
        device = self.of(stage)
        return self.device if device.type == "meta" else device


@dataclass(frozen=True)
class Conversion:
    """How a checkpoint is written in the compact form."""

    precision: ModelPrecision = "keep"
    codec_precision: CodecPrecision = "float16"
    decode_only: bool = False  # without the weights that only encode references

    def check_wide(self, family: str) -> None:
        """Raise `ParameterError` for weights in eight bits, which checkpoints of this family cannot have."""
        for name in ("precision", "codec_precision"):
            if getattr(self, name) == "int8":
                raise ParameterError(
                    name, f"'int8' is not available for {family}, which stores weights in 16 or 32 bits"
                )


@dataclass(frozen=True)
class Check:
    """One comparison: the largest absolute difference of real numbers, or the share of equal tokens."""

    name: str
    difference: float | None = None
    agreement: float | None = None
    passed: bool = False

    @classmethod
    def close(cls, name: str, computed: Tensor, expected: Tensor, tolerance: float) -> Check:
        """Compare real numbers of any shape with an absolute tolerance."""
        if computed.shape != expected.shape:
            return cls(name, difference=float("inf"))
        difference = float((computed.cpu() - expected.cpu()).abs().max())
        return cls(name, difference=difference, passed=difference <= tolerance)

    @classmethod
    def equal(cls, name: str, computed: Tensor, expected: Tensor) -> Check:
        """Compare whole numbers of any shape for equality."""
        if computed.shape != expected.shape:
            return cls(name, agreement=0.0)
        agreement = float((computed.cpu() == expected.cpu()).double().mean()) if expected.numel() else 1.0
        return cls(name, agreement=agreement, passed=agreement == 1.0)


def check_size(name: str, there: int, *here: int) -> None:
    """Raise `VerificationError` unless an oracle's size is one that its checkpoint can have."""
    if there not in here:
        sizes = " or ".join(map(str, here))
        raise VerificationError(
            f"the oracle belongs to a different checkpoint: its {name} is {there}; expected {sizes}"
        )


class Family(Protocol):
    """A family as the registry knows it. Importing its module, `settings` and `describe` do not load torch."""

    title: str  # the best-known model of the family
    settings: type[BaseModel]  # which are also settings of the engine
    stage_names: Sequence[str]  # in the order of the chain, as `placement` names them
    needed_files: Sequence[Sequence[str]]  # of a checkpoint directory: each by one of its names
    random_sizes: Mapping[str, str]  # of random checkpoints, the first by default: what each is

    def pick_files(self, names: Collection[str]) -> list[str]:
        """Choose from the names of a repository's files those of a checkpoint: weights in one form, and all else."""

    def describe(self, directory: Path) -> Description:
        """Read the small files of a checkpoint directory. Raises `CheckpointError`."""

    def sizes(self, directory: Path | None, formats: Formats, prefix_cache_bytes: int) -> Sizes:
        """Count memory and work of a checkpoint, or of the published model if it is None. Raises `CheckpointError`."""

    def open(self, directory: Path, placement: Placement, settings: Any) -> LoadedModel:
        """Open a checkpoint directory; `settings` has the fields of the family's own. Raises `CheckpointError`."""

    def files(self, directory: Path, conversion: Conversion) -> list[ArchiveEntry]:
        """Return all files of a checkpoint but its voices, in the compact form.

        The weights are checked against their config now, and read as their chunks are consumed. Raises
        `CheckpointError`.
        """

    def verify(
        self, directory: Path, oracle: Mapping[str, Any], device: torch.device, tolerance: float
    ) -> Iterator[Check] | None:
        """Open a checkpoint and return its checks against the original's results; None if the oracle has no known part.

        Raises `CheckpointError`. Iterating over the checks may raise anything if the oracle is malformed.
        """

    def write_random(self, directory: Path, *, size: str, form: Form, seed: int) -> None:
        """Write a new checkpoint directory with random weights, one of `random_sizes`. Raises `CheckpointFileError`."""


@dataclass(frozen=True)
class StageChain:
    """The stages of one engine: policies for the scheduler, and the networks that carry out its plans."""

    policies: tuple[StagePolicy, ...]
    stages: tuple[Stage, ...]
    sample_rate: int
    # Steps that an utterance may make after its prompt; below 1 the prompt is too long.
    room: Callable[[PromptTokens], int]


class LoadedModel(Protocol):
    """An open checkpoint, which speaks and encodes voices."""

    num_bytes: int  # of the weights that a step reads
    position_bytes: int  # that a slot needs for each position of its prompt and its steps
    max_positions: int  # of one utterance

    def prompt(self, text: str, voices: Sequence[Voice]) -> PromptTokens:
        """Write the prompt for one sentence piece. Raises `VoiceError` or `CapacityError`."""

    def own_voice(self, made: Sequence[np.ndarray], text: str) -> Voice:
        """Return a voice from an utterance: its `text` and `made`, the outputs of all stages except the last."""

    def chain(self, slots: int, positions: int) -> StageChain:
        """Build the stages of an engine, for `slots` utterances of up to `positions` positions each."""

    @property
    def networks(self) -> Sequence[nn.Module]:
        """Modules whose blocks may be compiled."""

    def condition(self, wave: Tensor) -> Generator[None, None, dict[str, Tensor]]:
        """Encode a recording [samples] to the tensors of a voice, with a `yield` after each bounded piece of work.

        Raises `CapacityError` if it is too long, and `CheckpointError` if loading the encoder fails.
        """
