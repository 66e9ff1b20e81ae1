"""Share of tokens that are unchanged when a step is captured, run alone, run after a cached prefix, or run by torch.

The eager, the captured and the greedy variant generate freely. All others are teacher-forced with the frames of the
variant that they are compared with, and sample at each step, so that one difference does not propagate. Shapes: F
frames, B rows, K codebooks.

python -m benchmark.agreement --checkpoint full-size --rows 64
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor

from benchmark.command import make_parser, report, run
from s1_mini.bench.report import describe_machine
from s1_mini.config import EngineConfig
from s1_mini.core.messages import Begin, Conditions, Prefill
from s1_mini.exceptions import CheckpointMismatchError
from s1_mini.families.codec_lm.model import SamplingTensors
from s1_mini.families.codec_lm.stage import LanguageModel
from s1_mini.families.find import find_checkpoint
from s1_mini.families.s1.loaded import LoadedS1
from s1_mini.families.s1.model import S1Model
from s1_mini.kernels.backend import without_triton
from s1_mini.layers.randomness import uniforms
from s1_mini.runtime.loader import LoadedCheckpoint, load
from s1_mini.types import SamplingParams


def loaded_s1(speaker: LoadedCheckpoint) -> LoadedS1:
    """Return the model of a checkpoint. Raises `CheckpointMismatchError` for other families than S1."""
    if not isinstance(speaker.loaded, LoadedS1):
        raise CheckpointMismatchError("only S1 checkpoints support this")
    return speaker.loaded


@dataclass(frozen=True)
class Agreement:
    """Shares of equal tokens."""

    main: float  # semantic tokens
    codes: float  # other codes, where the frame's earlier codes are equal
    frames: int  # number of compared frames

    @classmethod
    def between(cls, ours: Tensor, theirs: Tensor) -> Agreement:
        """Compare frames [F, B, K + 1]."""
        same = ours == theirs
        comparable = (
            same[..., :-1].cummin(-1).values[..., 1:]
        )  # without the first code, which the semantic token determines
        codes = (same[..., 2:] & comparable).sum() / comparable.sum().clamp_min(1)
        return cls(float(same[..., 0].float().mean()), float(codes), same[..., 0].numel())


@dataclass(frozen=True)
class NoiseRows:
    """Rows that begin with `context` positions of noise, seeded by the row's number, and generate `frames` frames."""

    context: int
    frames: int

    def speak(
        self,
        model: S1Model,
        rows: Sequence[int],
        *,
        temperature: float = SamplingParams().temperature,
        along: Tensor | None = None,
        captured: bool = False,
        cached: bool = False,
    ) -> Tensor:
        """Return the frames [F, B, K + 1] that these rows sample, teacher-forced with the frames `along` if given.

        With `cached`, half of each row's positions are saved and loaded before the other half is prefilled.
        """
        positions = self.context + self.frames + 1
        stage = LanguageModel(model, slots=len(rows), positions=positions)
        state, sampling = stage.state, self._sampling(model, rows, temperature)
        if captured:  # before the rows begin, because capturing also generates frames
            stage.make_graphs()
        prompts = [self._prompt(model, row) for row in rows]
        for slot, (row, prompt) in enumerate(zip(rows, prompts, strict=True)):
            steps, items = self.frames + 1, prompt.T.contiguous().numpy()
            conditions = Conditions(SamplingParams(temperature), row, 0, steps, {})
            stage.begin([Begin(slot, 0, items, None, 0, steps, 1, 0, len(items), conditions)])
        state.active.fill_(True)
        if captured and not model.batch_invariant:  # prefill eagerly: only steps are compared
            for slot, prompt in enumerate(prompts):
                model.prefill(state, slot, prompt[:, :-1])
        else:
            parts = [Prefill(slot, 0, self.context - 1) for slot in range(len(rows))]
            stage.prefill([self._save_and_load(stage, part) for part in parts] if cached else parts)
        outputs = []
        for frame in range(self.frames):
            before = [tensor.clone() for tensor in (state.position, state.count, state.window.history)]
            if captured:
                stage.step(range(len(rows)), 1)()
            else:
                model.step(state, sampling, positions)
            outputs.append(state.tokens.clone())
            if along is not None:
                for tensor, value in zip((state.position, state.count, state.window.history), before, strict=True):
                    tensor.copy_(value)
                model.advance(state, along[frame].to(model.device))
        return torch.stack(outputs).cpu()

    def _save_and_load(self, stage: LanguageModel, part: Prefill) -> Prefill:
        """Prefill the first half of a part, save it, clear the slot and load it; return the rest of the part."""
        half = part.stop // 2
        stage.prefill([part._replace(stop=half)])
        saved = stage.save(part.slot, half)
        for kept in (stage.state.cache.keys, stage.state.cache.values):
            kept[:, part.slot].zero_()
        stage.load(part.slot, saved)
        return part._replace(start=half)

    def _prompt(self, model: S1Model, row: int) -> Tensor:
        """Return the noise of a row, [K + 1, context]."""
        chance, outputs = torch.Generator().manual_seed(row), model.network.fast_output.out_features
        prompt = torch.randint(0, outputs, (model.num_codebooks + 1, self.context), generator=chance)
        prompt[0] = prompt[1] + model.tokenizer.semantic_begin
        return prompt

    def _sampling(self, model: S1Model, rows: Sequence[int], temperature: float) -> SamplingTensors:
        """Build the same sampling tensors as the stage."""
        params, device = SamplingParams(), model.device
        temperatures, top_p, penalty = (
            torch.full((len(rows),), value, device=device)
            for value in (temperature, params.top_p, params.repetition_penalty)
        )
        tables = [uniforms(row, 0, self.frames + 1, model.num_uniforms) for row in rows]
        return SamplingTensors(temperatures, top_p, penalty, torch.stack(tables).to(device))


@torch.inference_mode()
def measure_agreement(model: S1Model, *, rows: int, context: int, frames: int, alone: int) -> dict[str, Any]:
    """Generate `rows` rows eagerly and captured, `alone` of them in all other ways; return shares of equal tokens."""
    noise = NoiseRows(context, frames)
    spoken = noise.speak(model, range(rows))
    captured = noise.speak(model, range(rows), captured=True)
    apart = [noise.speak(model, [row], along=spoken[:, row : row + 1]) for row in range(alone)]
    cached = noise.speak(model, range(alone), along=spoken[:, :alone], cached=True)
    likeliest = noise.speak(model, range(alone), temperature=0.0)
    with without_triton():
        by_torch = noise.speak(model, range(alone), temperature=0.0, along=likeliest)
    found = {
        "captured and eager": Agreement.between(spoken, captured),
        "alone and in a batch": Agreement.between(spoken[:, :alone], torch.cat(apart, dim=1)),
        "cached and computed prefix, in different batches": Agreement.between(spoken[:, :alone], cached),
        "kernels and torch": Agreement.between(likeliest, by_torch),
    }
    return {name: asdict(agreement) for name, agreement in found.items()}


def main() -> None:
    """Measure, and print a table and a line of JSON."""
    parser = make_parser(__doc__)
    parser.add_argument("--rows", type=int, default=8, help="number of rows in one batch")
    parser.add_argument("--alone", type=int, default=2, help="number of rows that also run alone")
    parser.add_argument("--context", type=int, default=300, help="initial context of each row, in positions")
    parser.add_argument("--frames", type=int, default=40, help="number of frames per row")
    options = parser.parse_args()
    speaker = load(EngineConfig(checkpoint_path=find_checkpoint(options.checkpoint).directory, device=options.device))
    sizes = {name: getattr(options, name) for name in ("rows", "context", "frames", "alone")}
    found = measure_agreement(loaded_s1(speaker).model, **sizes)
    facts = describe_machine(speaker.device.value) | {"precision": speaker.precision.value}
    rows = [[name, *each.values()] for name, each in found.items()]
    report(["way", "semantic tokens", "codes", "frames"], rows, facts | sizes | {"agreement": found})


if __name__ == "__main__":
    sys.exit(run(main))
