"""In whose voice a benchmark asks: one that is new with every request, one that is known, or none."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal

import numpy as np

from s1_mini.engine import ProductionTTSEngine
from s1_mini.voices.library import FOLDER

VoiceState = Literal["cold", "cached", "none"]
VoiceChoice = Callable[[int], dict[str, Any]]  # the arguments of `stream` for a request's number

NOISE = 1e-4  # -80 dBFS: another recording for every cache, the same for an ear
TONE_S, TONE_HZ = 2.0, 150.0
TEXT = "The children were playing in the garden behind the house."


def choose_voice(state: VoiceState, engine: ProductionTTSEngine, seed: int) -> VoiceChoice:
    """Tell how the requests of one run name their voice.

    `cold` brings another recording with every number, `cached` the default voice or the first that can be read (a
    tone, where there is none), and `none` says nothing: see `without_voices`.
    """
    names = [info.name for info in sorted(engine.voices(), key=lambda info: not info.is_default)]
    if state == "none":
        return lambda _: {}
    if state == "cached":
        known = {"voice": names[0]} if names else {"reference_audio": _tone(engine.sample_rate)}
        return lambda _: known
    if names:
        wave, text = engine.generate(TEXT, voice=names[0], seed=seed).audio, TEXT
        assert wave is not None, "generate raises where it has no sound"
    else:
        wave, text = _tone(engine.sample_rate), None

    def cold(number: int) -> dict[str, Any]:
        noise = np.random.default_rng([seed, number]).standard_normal(len(wave), np.float32)
        return {"reference_audio": wave + np.float32(NOISE) * noise, "reference_text": text}

    return cold


def _tone(sample_rate: int) -> np.ndarray:
    time = np.arange(round(TONE_S * sample_rate)) / sample_rate
    return (0.2 * np.sin(2 * np.pi * TONE_HZ * time)).astype(np.float32)


@contextmanager
def without_voices(checkpoint: Path) -> Iterator[Path]:
    """Give the same checkpoint without named voices, so that no default speaks where no voice is asked for."""
    if not (checkpoint / FOLDER).exists():
        yield checkpoint
        return
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:  # Windows keeps what is mapped
        bare = Path(folder) / checkpoint.name
        bare.mkdir()
        for file in checkpoint.resolve().iterdir():
            if file.name != FOLDER and file.is_file():
                _link(file, bare / file.name)
        yield bare


def _link(file: Path, link: Path) -> None:
    try:
        link.symlink_to(file)
    except OSError:  # Windows lets few users make links
        shutil.copyfile(file, link)
