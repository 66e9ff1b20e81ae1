"""What a benchmark asks for, and when: always the same for the same seed, and no sentence twice."""

from __future__ import annotations

import random
from dataclasses import dataclass
from math import prod

from s1_mini.exceptions import ParameterError

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
    """Compose `requests` sentences, each another. Raises `ParameterError` beyond `MAX_ASKS`."""
    if requests > MAX_ASKS:
        raise ParameterError("requests", f"{requests} with warm-up and all loads; there are {MAX_ASKS} sentences")
    chance = random.Random(seed)  # noqa: S311 - a choice, no secret
    drawn = chance.sample(range(MAX_ASKS), requests)
    return [Ask(i, sentence(n), chance.randrange(2**31), max_new_tokens) for i, n in enumerate(drawn)]


def sentence(number: int) -> str:
    """Give the sentence of a number in [0, `MAX_ASKS`); no two are the same."""
    words = []
    for part in _PARTS:
        number, index = divmod(number, len(part))
        words.append(part[index])
    return " ".join(words) + "."


def planned_arrivals(count: int, rate: float, seed: int) -> list[float]:
    """Draw when requests come, in seconds from the start, in order: a Poisson process of `rate` a second."""
    chance = random.Random(seed)  # noqa: S311 - a choice, no secret
    now, arrivals = 0.0, []
    for _ in range(count):
        now += chance.expovariate(rate)
        arrivals.append(now)
    return arrivals
