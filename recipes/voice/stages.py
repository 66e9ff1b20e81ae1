"""The stages of the codec's training: how long, how fast, and with what."""

from __future__ import annotations

from dataclasses import dataclass

from training.loop import Schedule


@dataclass(frozen=True)
class Stage:
    """What a stage trains and how."""

    schedule: Schedule
    rows: int
    bypass: float  # share of rows that are not quantised (Défossez et al. 2024, Mimi)
    dropout: float  # share of rows that use only the first few codebooks, so that those carry the most
    is_adversarial: bool = True
    keeps_codes: bool = False


STAGES = {
    "spectral": Stage(Schedule(290.0, 8e-4, 600), 12, 0.5, 0.15, is_adversarial=False),
    "adversarial": Stage(Schedule(980.0, 4e-4, 1000, 0.9995), 6, 0.0, 0.0),
    "decoder": Stage(Schedule(450.0, 3e-4, 300), 12, 0.0, 0.0, keeps_codes=True),
}
