"""The interface of a model family.

The registry returns a `Family`, which describes a checkpoint from its small files and loads it as a `LoadedModel`. A
`LoadedModel` builds prompts, encodes voices, and builds a `StageChain`. Other packages use a family only through these
interfaces. Importing this module does not import torch.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Protocol

from s1_mini.exceptions import ParameterError, TextError, VerificationError, VoiceError
from s1_mini.text.form import TextForm
from s1_mini.text.tidy import tidied
from s1_mini.types import DEFAULT_SAMPLING, MAX_INSTRUCTIONS_LENGTH, SamplingParams, TTSRequest, complete_sampling

if TYPE_CHECKING:
    import numpy as np
    import torch
    from pydantic import BaseModel
    from torch import Tensor, nn

    from s1_mini.alignment.head import AlignmentHead
    from s1_mini.alignment.words import Aligner
    from s1_mini.capacity.sizes import Formats, Sizes
    from s1_mini.core.prompt import PromptTokens
    from s1_mini.core.stage import StagePolicy
    from s1_mini.runtime.stage import Stage
    from s1_mini.types import Voice
    from s1_mini.voices.format import VoiceFormat
    from s1_mini.weights.write import ArchiveEntry

ModelPrecision = Literal["keep", "float32", "float16", "bfloat16", "int8"]
CodecPrecision = Literal["float32", "float16", "int8"]
Form = Literal["published", "compact"]


@dataclass(frozen=True)
class PromptOptions:
    """Options of a request that become part of its prompt."""

    language: str | None = None  # one of `Description.languages`; None: the model decides
    instructions: str = ""  # a description in words of how to speak


PLAIN = PromptOptions()
MAX_LISTED = 20  # number of names in an error message


@dataclass(frozen=True)
class Description:
    """A checkpoint's properties, read from its small files without any weights."""

    sample_rate: int  # Hz
    voice: VoiceFormat  # tensors of a voice, and their encoder
    sampling: Sequence[str] = ("temperature", "top_p", "repetition_penalty")  # supported sampling parameters
    max_piece_bytes: int = 2**20  # maximum size of a text piece; longer texts are split
    word_times: bool = False  # whether config.json names an attention head that follows the text
    defaults: SamplingParams = DEFAULT_SAMPLING  # values of sampling parameters that a request does not set
    languages: Mapping[str, str] = field(default_factory=dict)  # tag (or "") by name; empty: no choice of languages
    instructions: bool = False  # whether a request may describe how to speak
    text_streams: bool = False  # whether it can read a text that is still being written; see `TextStreamModel`
    needs_voice: bool = False  # whether the model cannot speak without a voice
    splits: bool = True  # whether texts may be split into pieces; false if each piece would get another voice

    def sampling_of(self, request: TTSRequest) -> SamplingParams:
        """Return all sampling options. Raises `ParameterError` if the request changes an option that has no effect."""
        sampling = complete_sampling(request.sampling, self.defaults)
        for name in ("temperature", "top_p", "top_k", "repetition_penalty"):
            if name not in self.sampling and getattr(sampling, name) != getattr(self.defaults, name):
                allowed = f"supports {', '.join(self.sampling)}" if self.sampling else "does not sample"
                raise ParameterError(name, f"is not supported by this model, which {allowed}; omit it")
        return sampling

    def unsupported(self, request: TTSRequest) -> dict[str, str]:
        """Return the options of a request that the checkpoint does not support, by name, with the reason."""
        reasons = {}
        if request.language is not None and not self.languages:
            reasons["language"] = "is not supported by this model, which has no choice of languages"
        if request.instructions and not self.instructions:
            reasons["instructions"] = "is not supported by this model, which takes no instructions"
        return reasons

    def prompt_options(self, request: TTSRequest) -> PromptOptions:
        """Return the options for the prompt. Raises `ParameterError` if the checkpoint does not support one of them."""
        for name, reason in self.unsupported(request).items():
            raise ParameterError(name, f"{getattr(request, name)[:40]!r} {reason}; omit it")
        language = None if request.language is None else self._language(request.language)
        return PromptOptions(language, _tidied_instructions(request.instructions))

    def _language(self, given: str) -> str:
        wanted = given.strip().lower().replace("_", "-")
        for name, tag in self.languages.items():
            if wanted == name.lower() or (tag and wanted.partition("-")[0] == tag):
                return name
        listed = ", ".join(f"{name} ({tag})" if tag else name for name, tag in self.languages.items())
        raise ParameterError("language", f"must be one of {listed}, not {given!r}")

    def text_form(self, form: TextForm, language: str | None) -> TextForm:
        """Return the form of a request's text: in `language`, or else in the language that the checkpoint declares.

        If neither exists and the model has a choice of languages, each sentence is read in the language that it is
        written in.

        Raises `ParameterError` for an unsupported language.
        """
        tag = self.languages[self._language(language)] if self.languages and language is not None else ""
        is_chosen = bool(self.languages) and (bool(tag) or form.language is None)
        return replace(form, language=tag or None, is_chosen=True) if is_chosen else form

    def check(self, request: TTSRequest) -> None:
        """Raise `ParameterError` for an option that the checkpoint does not support."""
        self.sampling_of(request)
        self.prompt_options(request)
        if request.word_times:
            self.check_word_times()

    def check_voice(self, known: Sequence[str]) -> None:
        """Raise `VoiceError`, which lists `known` voices, if the checkpoint needs a voice and a request has none."""
        if self.needs_voice:
            listed = f"specify one of {', '.join(known[:MAX_LISTED])}, or" if known else "add one, or"
            raise VoiceError(
                "voice", f"is needed, because this model has no voice of its own; {listed} send a reference"
            )

    def check_text_stream(self, field: str = "text", value: str = "a TextStream") -> None:
        """Raise `ParameterError` if the checkpoint cannot read a text that is still being written.

        The message names `field` and `value`, which ask for that.
        """
        if not self.text_streams:
            raise ParameterError(
                field, f"{value} is not supported by this model, which reads whole sentences; Qwen3-TTS supports it"
            )

    def check_word_times(self) -> None:
        """Raise `ParameterError` if the checkpoint cannot report when words are spoken."""
        if not self.word_times:
            raise ParameterError(
                "word_times",
                "is not supported by this model: its config.json names no attention head that follows the text; omit "
                "it, or look for a head with `s1-mini align`",
            )


def _tidied_instructions(instructions: str) -> str:
    if not instructions.strip():
        return ""
    try:
        return tidied(instructions, MAX_INSTRUCTIONS_LENGTH)
    except TextError as error:
        raise ParameterError("instructions", error.reason) from None


@dataclass(frozen=True)
class Placement:
    """Devices and dtypes of a checkpoint."""

    device: torch.device
    dtype: torch.dtype  # of the models
    codec_dtype: torch.dtype  # of the codec or vocoder
    weights_dtype: torch.dtype | None = None  # of the weights of large products; None: they are not quantized
    kv_dtype: torch.dtype | None = None  # of keys and values; None: they are not quantized
    # Stages on other devices. `meta` means that a stage runs in another process, so that its weights are not read here.
    devices: Mapping[str, torch.device] = field(default_factory=dict)
    batch_invariant: bool = False  # whether the result of a row must not depend on its batch

    def of(self, stage: str) -> torch.device:
        return self.devices.get(stage, self.device)

    def beside(self, stage: str) -> torch.device:
        """Return a stage's device; the common device if the stage runs in another process."""
        device = self.of(stage)
        return self.device if device.type == "meta" else device


@dataclass(frozen=True)
class Conversion:
    """How a checkpoint is written in the compact form."""

    precision: ModelPrecision = "keep"
    codec_precision: CodecPrecision = "float16"
    decode_only: bool = False  # whether to leave out weights that only encode references

    def check_not_int8(self, family: str) -> None:
        """Raise `ParameterError` for int8 weights, which checkpoints of this family do not support."""
        for name in ("precision", "codec_precision"):
            if getattr(self, name) == "int8":
                raise ParameterError(
                    name, f"'int8' is not available for {family}, which stores weights in 16 or 32 bits"
                )


@dataclass(frozen=True)
class Check:
    """The result of one comparison: the largest absolute difference of real numbers, or the share of equal tokens."""

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
        """Compare integers of any shape for equality."""
        if computed.shape != expected.shape:
            return cls(name, agreement=0.0)
        agreement = float((computed.cpu() == expected.cpu()).double().mean()) if expected.numel() else 1.0
        return cls(name, agreement=agreement, passed=agreement == 1.0)


def compare_all(
    group: str, computed: Mapping[str, Tensor], stored: Mapping[str, Any], inputs: Collection[str], tolerance: float
) -> Iterator[Check]:
    """Compare every tensor of an oracle's group except its `inputs`; a tensor that was not recomputed fails."""
    for key, expected in stored.items():
        name = f"{group} {key}".strip()
        if key in inputs:
            continue
        if key not in computed:
            yield Check(f"{name} (unknown)")
        elif expected.is_floating_point():
            yield Check.close(name, computed[key], expected, tolerance)
        else:
            yield Check.equal(name, computed[key], expected)


def oracle_cases(content: Mapping[str, Any]) -> dict[str, dict[str, Tensor]]:
    """Return the tensors of an oracle, which are named `CASE.NAME`, by case and name."""
    cases: dict[str, dict[str, Tensor]] = {}
    for title, tensor in content.items():
        case, _, name = str(title).rpartition(".")
        cases.setdefault(case, {})[name] = tensor
    return cases


def check_size(name: str, size: int, *expected: int) -> None:
    """Raise `VerificationError` unless the size of an oracle fits the checkpoint."""
    if size not in expected:
        sizes = " or ".join(map(str, expected))
        raise VerificationError(f"the oracle belongs to a different checkpoint: its {name} is {size}; expected {sizes}")


class Family(Protocol):
    """A family's entry in the registry. Importing its module and calling `describe` do not import torch."""

    title: str  # the best-known model of the family
    settings: type[BaseModel]  # settings that are merged into the engine's settings
    stage_names: Sequence[str]  # names of the stages, in the order of the chain, for `placement`
    in_float16: bool  # whether its models can compute in float16
    needed_files: Sequence[Sequence[str]]  # the possible names of each required file of a checkpoint
    random_sizes: Mapping[str, str]  # sizes of random checkpoints, with descriptions; the first size is the default

    def check_config(self, values: Mapping[str, Any]) -> object:
        """Raise `CheckpointMismatchError` for the `config.json` of a relative that is not supported."""

    def pick_files(self, names: Collection[str]) -> list[str]:
        """Return those `names` of a repository's files that a checkpoint needs, with weights in only one form."""

    def describe(self, directory: Path) -> Description:
        """Read the small files of a checkpoint directory. Raises `CheckpointError`."""

    def sizes(self, directory: Path | None, formats: Formats) -> Sizes:
        """Return the memory and the work of a checkpoint; of the published model if `directory` is None.

        Raises `CheckpointError`.
        """

    def open(self, directory: Path, placement: Placement, settings: Any) -> LoadedModel:
        """Load a checkpoint directory; `settings` has the fields of the family's settings.

        Raises `CheckpointError`, or `ConfigurationError` for settings that the family does not support.
        """

    def files(self, directory: Path, conversion: Conversion) -> list[ArchiveEntry]:
        """Return all files of a checkpoint except its voices, in the compact form.

        The names and shapes of weights are checked at once, but most weights are cast while they are written. Raises
        `CheckpointError`, or `ParameterError` for a number format that the family does not support.
        """

    def verify(
        self, directory: Path, oracle: Mapping[str, Any], device: torch.device, tolerance: float
    ) -> Iterator[Check] | None:
        """Return an iterator that checks a checkpoint against an oracle; None if the oracle has no known part.

        Raises `CheckpointError`. Iterating raises `VerificationError` for an oracle of a different checkpoint, and may
        raise any exception for a malformed oracle.
        """

    def write_random(self, directory: Path, *, size: str, form: Form, seed: int) -> None:
        """Write a new checkpoint directory with random weights; `size` is in `random_sizes`.

        Raises `CheckpointFileError`.
        """


@dataclass(frozen=True)
class StageChain:
    """The stages of one engine: their policies for the scheduler, and the stages that carry out its plans."""

    policies: tuple[StagePolicy, ...]
    stages: tuple[Stage, ...]
    sample_rate: int
    # Returns the maximum number of steps after a prompt; below 1, the prompt is too long.
    room: Callable[[PromptTokens], int]
    aligner: Aligner | None = None  # None: word times are not available


class TextStreamModel(Protocol):
    """What a `LoadedModel` also has if it can read a text that is still being written (`Description.text_streams`).

    The text is cut only where a space or a mark follows a letter or a digit (`text/arriving.py`).
    """

    def begin_text(
        self, text: str, voices: Sequence[Voice], options: PromptOptions, *, is_last: bool
    ) -> PromptTokens | None:
        """Build the prompt for the beginning of a text; None if it needs more text. Raises the errors of `prompt`."""

    def rest_of_text(self, text: str, *, is_last: bool) -> np.ndarray:
        """Return the tokens [n] of the next part of a text; the following steps read one each."""


class LoadedModel(Protocol):
    """A loaded checkpoint."""

    num_bytes: int  # bytes of the weights that a step reads
    position_bytes: int  # bytes of a slot per position
    max_positions: int  # maximum number of positions of one utterance
    text_heads: tuple[int, int]  # numbers of layers, and of heads per layer, that may follow the text; zeros: none can
    # Heads whose scores the first stage reports (`runtime/text_scores.py`); by default the head in config.json.
    heads: Sequence[AlignmentHead]

    def prompt(self, text: str, voices: Sequence[Voice], options: PromptOptions = PLAIN) -> PromptTokens:
        """Build the prompt for one sentence piece. Raises `RequestError` or `CapacityError`."""

    def own_voice(self, outputs: Sequence[np.ndarray], text: str) -> Voice:
        """Return the voice of an utterance, made from its `text` and the `outputs` of all stages except the last."""

    def chain(self, slots: int, positions: int) -> StageChain:
        """Build the stages of an engine, for `slots` utterances of up to `positions` positions each."""

    @property
    def networks(self) -> Sequence[nn.Module]:
        """Modules whose transformer blocks inductor may compile."""

    def condition(self, wave: Tensor) -> Generator[None, None, dict[str, Tensor]]:
        """Encode a recording [samples] to the tensors of a voice, with a `yield` after each part of the work.

        Called only if `VoiceFormat.clones`. Raises `CapacityError` if the recording is too long, and `CheckpointError`
        if the encoder cannot be loaded.
        """
