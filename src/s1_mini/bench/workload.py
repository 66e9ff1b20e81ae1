"""What a benchmark asks for: always the same requests for the same seed."""

from __future__ import annotations

import random
from dataclasses import dataclass

SENTENCES = (
    "The morning train was late again.",
    "She closed the window and went downstairs.",
    "Please leave your message after the tone.",
    "There are seven apples left in the basket.",
    "We drove along the coast until it got dark.",
    "Nobody had told him about the meeting.",
    "Your order will arrive on Thursday afternoon.",
    "The children were playing in the garden behind the house.",
)


@dataclass(frozen=True)
class Ask:
    """One request of a workload."""

    text: str
    seed: int
    max_new_tokens: int


def make_workload(requests: int, seed: int, max_new_tokens: int) -> list[Ask]:
    """Draw `requests` short sentences."""
    chance = random.Random(seed)  # noqa: S311 - a choice, no secret
    return [Ask(chance.choice(SENTENCES), chance.randrange(2**31), max_new_tokens) for _ in range(requests)]
