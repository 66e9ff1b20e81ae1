"""The interface behind which every family stands.

A `Family` is what the registry names: it describes a checkpoint from its small files and opens it. A `LoadedModel` is
what it opens: it writes prompts, encodes voices, and makes a `Chain` of stages. All else talks to these names only.
Importing this loads no torch.
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
    from s1_mini.core.prompt import Prompt
    from s1_mini.core.stage import StagePolicy
    from s1_mini.runtime.stage import Stage
    from s1_mini.types import SamplingParams, Voice
    from s1_mini.voices.format import VoiceFormat
    from s1_mini.weights.write import Member

ModelPrecision = Literal["keep", "float32", "float16", "bfloat16", "int8"]
CodecPrecision = Literal["float32", "float16", "int8"]
Form = Literal["published", "compact"]


@dataclass(frozen=True)
class Description:
    """What the small files of a checkpoint say of it; no weight is read."""

    sample_rate: int  # Hz of the sound
    voice: VoiceFormat  # what a voice is made of, and what encodes it
    sampling: Sequence[str] = ("temperature", "top_p", "repetition_penalty")  # the parameters that mean something
    max_piece_bytes: int = 2**20  # of text in one piece; longer ones are split

    def check_sampling(self, asked: SamplingParams) -> None:
        """Raise `ParameterError` for a parameter that was changed and means nothing."""
        for name in ("temperature", "top_p", "top_k", "repetition_penalty"):
            if name not in self.sampling and getattr(asked, name) != getattr(DEFAULT_SAMPLING, name):
                told = f"has {', '.join(self.sampling)}" if self.sampling else "draws nothing"
                raise ParameterError(name, f"means nothing to this checkpoint, which {told}; leave it out")


@dataclass(frozen=True)
class Placement:
    """Where a checkpoint is opened, and in which number formats."""

    device: torch.device
    dtype: torch.dtype  # of the models
    codec_dtype: torch.dtype  # of what makes sound
    weights_dtype: torch.dtype | None = None  # of the large products, where it is a narrower one
    kv_dtype: torch.dtype | None = None  # of keys and values, likewise
    # Of stages that are elsewhere, by their names; `meta` for one in another process, whose weights are not read here.
    devices: Mapping[str, torch.device] = field(default_factory=dict)
    batch_invariant: bool = False  # whether a row's bits must not depend on those beside it, where a family offers it

    def of(self, stage: str) -> torch.device:
        return self.devices.get(stage, self.device)

    def beside(self, stage: str) -> torch.device:
        """Return the device for work beside a stage's: its own, or the common one where the stage is not in memory."""
        device = self.of(stage)
        return self.device if device.type == "meta" else device


@dataclass(frozen=True)
class Conversion:
    """How a checkpoint is written in the compact form."""

    precision: ModelPrecision = "keep"
    codec_precision: CodecPrecision = "float16"
    decode_only: bool = False  # without what only encodes references

    def check_wide(self, family: str) -> None:
        """Raise `ParameterError` for weights in eight bits, which checkpoints of this family cannot have."""
        for name in ("precision", "codec_precision"):
            if getattr(self, name) == "int8":
                raise ParameterError(name, f"'int8' is none of {family}, whose weights are stored in 16 or 32 bits")


@dataclass(frozen=True)
class Check:
    """One comparison: the largest absolute difference of real numbers, or the share of equal tokens."""

    name: str
    difference: float | None = None
    agreement: float | None = None
    passed: bool = False

    @classmethod
    def close(cls, name: str, computed: Tensor, expected: Tensor, tolerance: float) -> Check:
        """Compare real numbers of any shape; none may differ by more than `tolerance`."""
        if computed.shape != expected.shape:
            return cls(name, difference=float("inf"))
        difference = float((computed.cpu() - expected.cpu()).abs().max())
        return cls(name, difference=difference, passed=difference <= tolerance)

    @classmethod
    def equal(cls, name: str, computed: Tensor, expected: Tensor) -> Check:
        """Compare whole numbers of any shape, which must be the same."""
        if computed.shape != expected.shape:
            return cls(name, agreement=0.0)
        agreement = float((computed.cpu() == expected.cpu()).double().mean()) if expected.numel() else 1.0
        return cls(name, agreement=agreement, passed=agreement == 1.0)


def check_size(name: str, there: int, *here: int) -> None:
    """Raise `VerificationError` if an oracle's size is none of those that its checkpoint can have."""
    if there not in here:
        sizes = " or ".join(map(str, here))
        raise VerificationError(f"the oracle was made of another checkpoint: {name} is {there} there, {sizes} here")


class Family(Protocol):
    """A family as the registry knows it. Neither importing its module nor `settings` and `describe` load torch."""

    title: str  # of what it was made for, as people call it
    settings: type[BaseModel]  # which are settings of the engine, too
    stage_names: Sequence[str]  # in the order of the chain, as `placement` names them
    needed_files: Sequence[Sequence[str]]  # of a checkpoint directory: each by one of its names
    random_sizes: Mapping[str, str]  # of random checkpoints, the first by default: what each is

    def pick_files(self, names: Collection[str]) -> list[str]:
        """Choose from the names of a repository's files those of a checkpoint: weights in one form, and all else."""

    def describe(self, directory: Path) -> Description:
        """Read the small files of a checkpoint directory. Raises `CheckpointError`."""

    def sizes(self, directory: Path | None, formats: Formats, prefix_cache_bytes: int) -> Sizes:
        """Count what a checkpoint directory takes, or without one what was published. Raises `CheckpointError`."""

    def open(self, directory: Path, placement: Placement, settings: Any) -> LoadedModel:
        """Open a checkpoint directory; `settings` has the fields of the family's own. Raises `CheckpointError`."""

    def files(self, directory: Path, conversion: Conversion) -> list[Member]:
        """Return all files of a checkpoint but its voices, in the compact form.

        The weights are checked against their config now, and read when their chunks are asked for. Raises
        `CheckpointError`.
        """

    def verify(
        self, directory: Path, oracle: Mapping[str, Any], device: torch.device, tolerance: float
    ) -> Iterator[Check] | None:
        """Open a checkpoint and give its checks against what the original computed; None if the oracle holds nothing.

        Raises `CheckpointError`; going through the checks raises whatever an oracle of another form leads to.
        """

    def write_random(self, directory: Path, *, size: str, form: Form, seed: int) -> None:
        """Write a new checkpoint directory with random weights, one of `random_sizes`. Raises `CheckpointFileError`."""


@dataclass(frozen=True)
class Chain:
    """The stages of one engine: what the scheduler knows of them, and what carries out its plans."""

    policies: tuple[StagePolicy, ...]
    stages: tuple[Stage, ...]
    sample_rate: int
    room: Callable[[Prompt], int]  # steps that an utterance may make after its prompt; below 1 there is no room


class LoadedModel(Protocol):
    """A checkpoint that is open: what speaks, and what encodes voices."""

    num_bytes: int  # of the weights that a step reads
    position_bytes: int  # that a slot needs for each position of prompt and steps
    max_positions: int  # of one utterance

    def prompt(self, text: str, voices: Sequence[Voice]) -> Prompt:
        """Write the prompt for one sentence piece. Raises `VoiceError` or `CapacityError`."""

    def own_voice(self, made: Sequence[np.ndarray], text: str) -> Voice:
        """Return the voice heard in what all stages but the last have made of `text`."""

    def chain(self, slots: int, positions: int) -> Chain:
        """Make the stages of an engine, for `slots` utterances of up to `positions` positions each."""

    @property
    def networks(self) -> Sequence[nn.Module]:
        """What has blocks that may be compiled."""

    def condition(self, wave: Tensor) -> Generator[None, None, dict[str, Tensor]]:
        """Encode a recording [samples] to the tensors of a voice, with a `yield` after each bounded piece of work.

        Raises `CapacityError` for one that is too long, and what the first use may need to load.
        """
