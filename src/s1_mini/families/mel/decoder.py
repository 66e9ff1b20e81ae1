"""The mel decoder as a stage: a text in, a few frames per step out, until the speech ends.

The whole text is encoded at once, in the prefill call that contains its last token. A step computes all slots up to the
highest active one, in shapes for which the results of a slot do not depend on other slots.
Shapes: B slots of a call, T tokens, M mel bins, R frames per step.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from s1_mini.alignment.head import AlignmentHead
from s1_mini.core.messages import Begin, Prefill, StepResult
from s1_mini.families.mel.model import MelModel
from s1_mini.families.mel.voice import SPEAKER
from s1_mini.layers.staging import Writes
from s1_mini.runtime.graphs import Buffer, GraphOptions, StepGraphs
from s1_mini.runtime.rows import SteppingSlots, fit, ladder, whole_spans
from s1_mini.runtime.stage import Pending, Stage
from s1_mini.runtime.text_scores import Scores, TextScores

READ_ROWS = (1, 4)  # numbers of texts in captured encoder calls
READ_TOKENS = (64, 128, 256)  # numbers of tokens in captured encoder calls, besides the model's maximum
MASKED_STEPS = 128  # steps whose dropout masks are sampled at once, in 0.1 ms; more would delay the first step


class MelDecoder(Stage):
    """SpeechT5's decoder for `slots` utterances of up to `steps` steps each."""

    def __init__(
        self, model: MelModel, *, slots: int, steps: int, heads: Sequence[AlignmentHead] | None = None
    ) -> None:
        """`heads` are the heads whose scores are reported; by default, the head that config.json names."""
        self.device, self.is_overlapped = model.device, model.device.type == "cuda"
        self._model, self._slots = model, slots
        with torch.inference_mode():
            self.state = model.allocate(slots, steps, heads)
        self._scores = TextScores(self.state.heads)
        self._steps = self.state.max_steps
        self._ladder = ladder(slots)
        max_text = model.config.max_text
        self._tokens = [*(count for count in READ_TOKENS if count < max_text), max_text]
        self._texts: dict[int, np.ndarray] = {}  # by slot, [T]
        self._lengths = [0] * slots  # number of steps that are done or launched
        self._num_tokens = [0] * slots
        self._begun: dict[int, Begin] = {}  # by slot
        self._writes = Writes(self.device)
        self._stepping = SteppingSlots(self.state.active, self._writes)
        self._graphs: StepGraphs[int] | None = None
        self._reads: StepGraphs[tuple[int, int]] | None = None

    def make_graphs(self) -> None:
        self._stepping.choose(())
        self._writes.run()  # compiles its kernel
        config = self._model.config
        options = GraphOptions.of_stage(self.device, 0)
        self._reads = StepGraphs(
            self._read,
            [(rows, count) for count in self._tokens[::-1] for rows in READ_ROWS[::-1]],
            lambda key: [Buffer((key[0], key[1] + 2))],
            lambda _: [],
            device=self.device,
            options=replace(options, is_staged=True),
        )
        width = config.frames_per_step * config.num_bins + 2
        self._graphs = StepGraphs(
            lambda rows: [self._model.step(self.state, self._steps, config.max_text, rows)],
            self._ladder[::-1],
            lambda _: [],
            lambda rows: [Buffer((rows, width), torch.float32)],
            device=self.device,
            options=replace(options, is_ahead=True),
        )

    def begin(self, begins: Sequence[Begin]) -> None:
        model = self._model
        for begin in begins:
            slot, speaker = begin.slot, begin.conditions.voice.get(SPEAKER)
            vector = np.zeros(model.config.speaker_size, np.float32) if speaker is None else np.asarray(speaker)
            min_steps = model.steps_for(len(begin.inputs), model.settings.min_length_ratio)
            model.begin(self.state, slot, torch.from_numpy(vector), min_steps)
            self._texts[slot], self._lengths[slot], self._begun[slot] = begin.inputs, 0, begin
            self._num_tokens[slot] = len(begin.inputs)
            self._scores.begin(begin)

    def prefill(self, parts: Sequence[Prefill]) -> None:
        """Encode the texts whose last token is in one of `parts`."""
        slots = [part.slot for part in parts if part.stop == len(self._texts[part.slot])]
        if self._reads is None:
            for slot in slots:
                tokens = torch.from_numpy(self._texts[slot]).unsqueeze(0).to(self.device)
                self._model.read(self.state, tokens, torch.tensor([slot], device=self.device))
            return
        for at in range(0, len(slots), READ_ROWS[-1]):
            batch = slots[at : at + READ_ROWS[-1]]
            longest = max(len(self._texts[slot]) for slot in batch)
            rows = fit(READ_ROWS, len(batch))
            count = fit(self._tokens, longest)
            texts = np.zeros((rows, count + 2), np.int64)
            texts[:, -2:] = self._slots, 1  # for padding rows: the padding slot, and a length of one token
            for row, slot in enumerate(batch):
                text = self._texts[slot]
                texts[row, : len(text)], texts[row, -2:] = text, (slot, len(text))
            self._reads.launch((rows, count), texts)

    def step(self, slots: Sequence[int], size: int) -> Pending:  # noqa: ARG002 - there is one size
        if self._model.has_dropout:
            self._sample_masks(slots)
        rows = 1 + max(slots)
        if self._graphs is not None:
            self._stepping.choose(slots)
            self._writes.run()
            wait = self._graphs.launch(fit(self._ladder, rows))
            copied = self._scores.copy(slots, self._num_tokens)
            self._count(slots)
            return lambda: self._result(slots, wait()[0], copied())
        config = self._model.config
        self._stepping.choose(slots)
        self._writes.run()
        span = min(whole_spans(max(self._lengths[slot] for slot in slots) + 1), self._steps)
        text_span = min(whole_spans(max(len(self._texts[slot]) for slot in slots)), config.max_text)
        state = self.state if self._scores.is_wanted else replace(self.state, heads=())
        output = self._model.step(state, span, text_span, rows).cpu().numpy()
        scores = self._scores.read(slots, self._num_tokens, slots)
        self._count(slots)
        return lambda: self._result(slots, output, scores)

    def _count(self, slots: Sequence[int]) -> None:
        for slot in slots:
            self._lengths[slot] += 1

    def _sample_masks(self, slots: Sequence[int]) -> None:
        """Sample the dropout masks of the next `MASKED_STEPS` steps for all slots that have none left."""
        for slot in slots:
            first, begun = self._lengths[slot], self._begun[slot]
            count = min(MASKED_STEPS, begun.steps - first)
            if first % MASKED_STEPS == 0 and count > 0:
                request = begun.conditions
                kept = self._model.sample_kept(request.seed, request.utterance, first // MASKED_STEPS, count)
                self._model.keep(self.state, slot, first, kept)

    def _read(self, _: tuple[int, int], texts: Tensor) -> list[Tensor]:
        self._model.read(self.state, texts[:, :-2], texts[:, -2].contiguous(), texts[:, -1].clamp_min(1))
        return []

    def _result(self, slots: Sequence[int], output: np.ndarray, scores: Scores) -> StepResult:
        """Split the output of a step [rows, R * M + 2] among its slots.

        Scores of a single head are divided by R, because the scheduler stores them for each of the R frames of a step.
        """
        rows, frames = output[list(slots)], self._model.config.frames_per_step
        values = rows[:, :-2].reshape(len(rows), frames, -1)
        stops, valid = (rows[:, -2] != 0).tolist(), (rows[:, -1] != 0).tolist()
        scores = {slot: row / frames if row.ndim == 1 else row for slot, row in scores.items()}
        return StepResult(values, [frames] * len(rows), stops, valid, scores=scores)
