"""The toy family for the registry: a checkpoint is its config.json and its voices, each a speaker vector."""

from __future__ import annotations

import json
from collections.abc import Collection, Generator, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from pydantic import BaseModel
from safetensors.torch import save_file
from torch import Tensor

from s1_mini.capacity.sizes import Cost, Formats, MemoryRequirement, Sizes, StageSizes
from s1_mini.core.prompt import PromptTokens
from s1_mini.families.base import PLAIN, Check, Conversion, Description, Placement, PromptOptions, StageChain
from s1_mini.types import SamplingParams, Voice
from s1_mini.voices.format import TensorFormat, VoiceFormat
from s1_mini.weights.write import ArchiveEntry, copied
from tests.toy.stages import FRAMES, SAMPLE_RATE, WIDTH, Frames, Text, Vocoder, policies

NAME = "toy"
MAX_POSITIONS = 4096
VOICES = {"low": -0.4, "high": 0.3}  # the first is the default
LANGUAGES = {"English": "en", "Klingon": ""}
DEFAULTS = SamplingParams(max_new_tokens=300)


class ToySettings(BaseModel, frozen=True):
    """No settings."""


class LoadedToy:
    """A loaded toy checkpoint."""

    num_bytes, position_bytes, max_positions = 1000, 8, MAX_POSITIONS
    networks = ()
    text_heads, heads = (0, 0), ()  # no word times

    def prompt(self, text: str, voices: Sequence[Voice], options: PromptOptions = PLAIN) -> PromptTokens:
        whole = f"{options.language or ''}{options.instructions}{text}"
        items = np.frombuffer(whole.encode(), np.uint8).astype(np.int64)[:, None]
        return PromptTokens(items, voice={"speaker": voices[0].tensors["speaker"].numpy()} if voices else {})

    def own_voice(self, made: Sequence[np.ndarray], text: str) -> Voice:
        return Voice({"speaker": torch.from_numpy(made[1].mean(0)) / 2}, text)

    def chain(self, slots: int, positions: int) -> StageChain:
        made = policies(slots)
        return StageChain(
            made, (Text(), Frames(), Vocoder()), SAMPLE_RATE, lambda prompt: positions - len(prompt.items)
        )

    def condition(self, wave: Tensor) -> Generator[None, None, dict[str, Tensor]]:
        yield
        return {"speaker": torch.stack([part.abs().mean() for part in wave.chunk(WIDTH)])}


class Toy:
    """The registered class."""

    title, settings, needed_files = "Toy", ToySettings, (("config.json",),)
    stage_names = ("text", "frames", "vocoder")
    in_float16 = True
    random_sizes = {"tiny": "a file of text"}  # noqa: RUF012

    def check_config(self, values: Mapping[str, Any]) -> None:
        pass

    def pick_files(self, names: Collection[str]) -> list[str]:
        return [name for name in names if name == "config.json" or name.startswith("voices/")]

    def describe(self, directory: Path) -> Description:  # noqa: ARG002 - all are alike
        form = {"speaker": TensorFormat((WIDTH,), is_integer=False)}
        vector = lambda arrays: {"speaker": torch.from_numpy(arrays[""])}  # noqa: E731
        return Description(
            SAMPLE_RATE,
            VoiceFormat(form, encoder="toy", sample_rate=SAMPLE_RATE, seconds=lambda _: 0.0, from_arrays=vector),
            defaults=DEFAULTS,
            languages=LANGUAGES,
            instructions=True,
        )

    def sizes(self, directory: Path | None, formats: Formats) -> Sizes:  # noqa: ARG002
        reads = StageSizes(1e6, lambda rows, _: Cost(1e6, 2e6 * rows), "memory")
        sounds = StageSizes(1e5, lambda rows, _: Cost(1e5, 1e7 * rows), "compute")
        stages = {"text": reads, "frames": reads, "vocoder": sounds}
        text = MemoryRequirement(LoadedToy.position_bytes)
        demands = {"text": text, "frames": MemoryRequirement(), "vocoder": MemoryRequirement(frame=1280)}
        return Sizes(stages, demands, 1 / FRAMES.rate, MAX_POSITIONS, lambda _, text_bytes: 4 * text_bytes)

    def open(self, directory: Path, placement: Placement, settings: Any) -> LoadedToy:  # noqa: ARG002
        return LoadedToy()

    def files(self, directory: Path, conversion: Conversion) -> list[ArchiveEntry]:  # noqa: ARG002 - nothing to convert
        return [copied(directory / "config.json", "config.json")]

    def verify(self, *_: Any) -> Iterator[Check] | None:
        return None

    def write_random(self, directory: Path, *, size: str, form: str, seed: int) -> None:  # noqa: ARG002
        (directory / "voices").mkdir(parents=True)
        (directory / "config.json").write_text(json.dumps({"model_type": NAME}))
        for name, value in VOICES.items():
            output = {"text": "", "description": f"a {name} voice", "default": "true" if name == "low" else "false"}
            save_file(
                {"speaker": torch.full((WIDTH,), value)}, directory / "voices" / f"{name}.safetensors", metadata=output
            )
