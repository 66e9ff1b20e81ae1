"""Whose next unit of work is done first: who is about to run dry, first sounds, who has run dry, then the rest.

Each class has its own order, and is passed over a few times in a row at most: nobody is put off for ever.
"""

from __future__ import annotations

from collections.abc import Sequence

from s1_mini.core.request import StageSequence

RESERVE_S = 0.1  # a listener with less than this left to hear is about to run dry
# Choices in a row that may fall upon others while somebody waits in a class: urgent, first, dry, the rest.
MAX_PASSED_OVER = (9, 1, 3, 4)


class Urgency:
    """Chooses among the sequences of one stage."""

    def __init__(self) -> None:
        self.somebody_runs_dry = False  # as of the last choice
        self._passed_over = [0, 0, 0, 0]  # in a row, by class
        self._num_choices = 0

    def choose(self, ready: Sequence[StageSequence], now: float) -> StageSequence:
        """Choose one; there must be one."""
        classes = classify(ready, now)
        self.somebody_runs_dry = bool(classes[0])
        waiting = [number for number, sequences in enumerate(classes) if sequences]
        overdue = [number for number in waiting if self._passed_over[number] >= MAX_PASSED_OVER[number]]
        taken = (overdue or waiting)[0]
        for number in waiting:
            self._passed_over[number] += 1
        self._passed_over[taken] = 0
        return classes[taken][0]

    def order(self, ready: Sequence[StageSequence], now: float) -> list[StageSequence]:
        """Give sequences in the order of their classes."""
        return [sequence for sequences in classify(ready, now) for sequence in sequences]

    def note(self, sequence: StageSequence) -> None:
        """Remember that a sequence was chosen: in the last class, who was chosen longest ago comes first."""
        self._num_choices += 1
        sequence.last_choice = self._num_choices


def classify(ready: Sequence[StageSequence], now: float) -> tuple[list[StageSequence], ...]:
    """Part sequences: whose listeners are about to run dry, wait for a first sound, have run dry, and the rest."""
    urgent: list[StageSequence] = []
    firsts: list[StageSequence] = []
    dry: list[StageSequence] = []
    rest: list[StageSequence] = []
    for sequence in ready:
        speech = sequence.request.speech
        if now <= speech.runs_dry < now + RESERVE_S:
            urgent.append(sequence)
        elif speech.is_awaited:
            firsts.append(sequence)
        elif speech.runs_dry < now:
            dry.append(sequence)
        else:
            rest.append(sequence)
    urgent.sort(key=_runs_dry)
    dry.sort(key=_runs_dry)
    rest.sort(key=lambda sequence: sequence.last_choice)
    return urgent, firsts, dry, rest


def _runs_dry(sequence: StageSequence) -> float:
    return sequence.request.speech.runs_dry
