"""The requests of a benchmark: sentences, arrival times and voices, reproducible from a seed."""

from __future__ import annotations

import random
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from s1_mini.exceptions import ParameterError

if TYPE_CHECKING:
    from s1_mini.engine import ProductionTTSEngine

VoiceState = Literal["cold", "cached", "none"]
VoiceChoice = Callable[[int], dict[str, Any]]  # arguments of `stream`, by the request's number

NOISE = 1e-4  # -80 dBFS: inaudible, but makes a new recording for the cache
TONE_HZ = 150.0
TEXT = "The children were playing in the garden behind the house."

_WHO = (
    "The old gardener", "My neighbour", "A young doctor", "The night nurse", "Our teacher", "The postman",
    "His sister", "A tall stranger", "The baker", "Their captain", "The new manager", "Her grandfather",
    "A quiet student", "The farmer", "The librarian", "One of the drivers", "The painter", "My cousin",
    "The cook", "A friendly guide",
)  # fmt: skip
_DID = (
    "found", "carried away", "was looking for", "forgot", "brought", "wanted to see", "had hidden", "sold",
    "painted", "promised us", "left behind", "asked for", "repaired", "borrowed", "described", "counted",
    "gave away", "remembered", "noticed", "paid for",
)  # fmt: skip
_WHAT = (
    "the letters", "an umbrella", "seven apples", "the blue suitcase", "a bicycle", "the wooden boat", "two tickets",
    "the garden chairs", "a loaf of bread", "the broken clock", "her photographs", "a bunch of flowers",
    "the kitchen table", "a map of the island", "some warm blankets", "the morning paper", "a basket of cherries",
    "the church bells", "a box of candles", "the winter coats",
)  # fmt: skip
_WHEN = (
    "before breakfast", "late in the evening", "on Thursday afternoon", "after the storm", "at the station",
    "in the middle of the night", "without saying a word", "by the river", "for the children", "as it got dark",
    "on the way home", "for the third time", "in the small village", "during the holidays", "behind the house",
    "at the end of the street", "when nobody was looking", "in spite of the rain", "with great care", "last summer",
)  # fmt: skip
_PARTS = (_WHO, _DID, _WHAT, _WHEN)
MAX_ASKS = prod(len(part) for part in _PARTS)


@dataclass(frozen=True)
class Ask:
    """One request of a workload."""

    number: int
    text: str
    seed: int
    max_new_tokens: int


def make_workload(requests: int, seed: int, max_new_tokens: int) -> list[Ask]:
    """Compose `requests` different sentences. Raises `ParameterError` beyond `MAX_ASKS`."""
    if requests > MAX_ASKS:
        raise ParameterError(
            "requests",
            f"{requests} for all loads and their warm-ups; the limit is {MAX_ASKS}. Run fewer requests or loads",
        )
    chance = random.Random(seed)  # noqa: S311 - a choice, no secret
    drawn = chance.sample(range(MAX_ASKS), requests)
    return [Ask(i, sentence(n), chance.randrange(2**31), max_new_tokens) for i, n in enumerate(drawn)]


def sentence(number: int) -> str:
    """Return the sentence for a number in [0, `MAX_ASKS`); all are different."""
    words = []
    for part in _PARTS:
        number, index = divmod(number, len(part))
        words.append(part[index])
    return " ".join(words) + "."


def planned_arrivals(count: int, rate: float, seed: int) -> list[float]:
    """Draw sorted arrival times in seconds: a Poisson process of `rate` a second."""
    chance = random.Random(seed)  # noqa: S311 - a choice, no secret
    now, arrivals = 0.0, []
    for _ in range(count):
        now += chance.expovariate(rate)
        arrivals.append(now)
    return arrivals


def choose_voice(state: VoiceState, engine: ProductionTTSEngine, seed: int) -> VoiceChoice:
    """Return a function from the number of a request to the request's voice options.

    `cold` uses a new recording for every number; `cached` uses the default voice, otherwise the first voice, otherwise
    a tone; `none` uses no voice (see `without_voices`).
    """
    names = [info.name for info in sorted(engine.voices(), key=lambda info: not info.is_default)]
    if state == "none":
        return lambda _: {}
    if state == "cached":
        known = {"voice": names[0]} if names else {"reference_audio": tone(engine.sample_rate)}
        return lambda _: known
    if names:
        wave, text = engine.generate(TEXT, voice=names[0], seed=seed).audio, TEXT
        assert wave is not None, "generate raises where it has no audio"
    else:
        wave, text = tone(engine.sample_rate), None

    def cold(number: int) -> dict[str, Any]:
        noise = np.random.default_rng([seed, number]).standard_normal(len(wave), np.float32)
        return {"reference_audio": wave + np.float32(NOISE) * noise, "reference_text": text}

    return cold


def tone(sample_rate: int, seconds: float = 2.0) -> np.ndarray:
    """Return a low tone [samples] as a recording."""
    time = np.arange(round(seconds * sample_rate)) / sample_rate
    return (0.2 * np.sin(2 * np.pi * TONE_HZ * time)).astype(np.float32)


@contextmanager
def without_voices(checkpoint: Path) -> Iterator[Path]:
    """Yield the same checkpoint without named voices, and therefore without a default voice."""
    from s1_mini.voices.library import FOLDER

    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:  # Windows cannot delete mapped files
        bare = Path(folder) / checkpoint.name
        shutil.copytree(checkpoint.resolve(), bare, ignore=shutil.ignore_patterns(FOLDER), copy_function=_link)
        yield bare


def _link(file: str, link: str) -> None:
    try:
        Path(link).symlink_to(file)
    except OSError:  # on Windows, most users cannot create links
        shutil.copyfile(file, link)
