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
    breadth: int = 1  # of the discriminators
    patience: int = 0  # steps that new discriminators have before the codec learns from them


STAGES = {
    "spectral": Stage(Schedule(290.0, 8e-4, 600), 12, 0.5, 0.15, is_adversarial=False),
    "adversarial": Stage(Schedule(980.0, 4e-4, 1000, 0.9995), 6, 0.0, 0.0),
    "decoder": Stage(Schedule(1000.0, 3e-4, 300, 0.9995), 24, 0.0, 0.0, keeps_codes=True, breadth=2, patience=1000),
}
