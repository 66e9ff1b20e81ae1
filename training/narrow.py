"""What weights, keys and values in eight bits cost the voice that ships, and what they save.

python training/narrow.py --sentences 30

The same sentences are spoken with every format by the same random numbers, and heard as `evaluate.py` hears them. How
far logits move is measured along what the full formats said. Times are of one CPU thread, the formats taking turns.
Prints a table, then a line of JSON.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Sequence
from itertools import cycle
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

if not __package__:  # started as a file
    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from s1_mini.families.find import find_checkpoint
from s1_mini.families.s1.loaded import as_s1
from s1_mini.families.s1.model import S1Model, SamplingTensors
from s1_mini.families.s1.prompt import Prompt
from s1_mini.families.s1.settings import S1Settings
from s1_mini.layers.randomness import uniforms
from s1_mini.runtime.loader import Speaker, open_checkpoint
from s1_mini.types import Choice, SamplingParams
from training.evaluate import RATE_HZ, resample
from training.metrics.quality import overall_quality
from training.metrics.recognition import as_int16, recognise
from training.metrics.words import compare

FORMATS = ["int8/full", "full/fp8", "int8/fp8", "fp8/full", "fp8/fp8"]  # of weights, and of keys and values
MOST_FRAMES = 300
ROWS, SPAN = 4, 256  # of a step that is timed
TEXTS = Path(__file__).with_name("held_out.txt")
SECTIONS = ("[plain]", "[names]", "[numbers]", "[short]")


class Sentence(NamedTuple):
    """What is said, as the model reads it, and by which random numbers."""

    text: str
    prompt: Prompt
    table: Tensor


def open_format(directory: Path, weights: str, kv: str) -> Speaker:
    """Open a checkpoint on the CPU in these formats, the slow ones too."""
    return open_checkpoint(
        directory,
        device=Choice("cpu", "measured here"),
        precision=Choice("float32", "measured here"),
        weights_dtype=Choice(weights, "measured"),
        kv_dtype=Choice(kv, "measured"),
        settings=S1Settings(),
    )


def choose_sentences(speaker: Speaker, skipped: int, count: int, seed: int) -> list[Sentence]:
    """Take sentences of all kinds in turn, without the first ones, spoken by the voices in turn; `seed` varies how."""
    sections: dict[str, list[str]] = {}
    for line in TEXTS.read_text().splitlines():
        if line.startswith("["):
            lines = sections.setdefault(line, [])
        elif line and not line.startswith("#"):
            lines.append(line)
    mixed = [text for texts in zip(*(sections[name] for name in SECTIONS), strict=False) for text in texts]
    names, model = cycle(speaker.voices.names), as_s1(speaker.loaded).model
    return [
        Sentence(
            text,
            model.prompt(text, [speaker.voices.describe(next(names)).voice]),
            uniforms(number, seed, MOST_FRAMES, model.num_codebooks).unsqueeze(0),
        )
        for number, text in list(enumerate(mixed))[skipped : skipped + count]
    ]


def say(model: S1Model, sentence: Sentence) -> Tensor:
    """Speak with the engine's defaults: main tokens and codes [K + 1, F]."""
    start = sentence.prompt.columns.shape[1]
    state = _begin(model, sentence.prompt)
    asked = SamplingParams()
    sampling = SamplingTensors(
        torch.tensor([asked.temperature]),
        torch.tensor([asked.top_p]),
        torch.tensor([asked.repetition_penalty]),
        sentence.table,
    )
    frames = []
    for index in range(MOST_FRAMES):
        if bool(model.step(state, sampling, span=start + index).stop):
            break
        frames.append(state.column[0].clone())
    return torch.stack(frames, dim=1)


def follow(model: S1Model, prompt: Prompt, frames: Tensor) -> Tensor:
    """Walk along `frames`, whatever the logits say: the main head's logits [F, V] before each, and after the last."""
    state, start = _begin(model, prompt), prompt.columns.shape[1]
    logits = []
    for index in range(frames.shape[1] + 1):
        logits.append(model.network.main_logits(model.hidden(state, start + index))[0])
        if index < frames.shape[1]:
            model.advance(state, frames[:, index].unsqueeze(0))
    return torch.stack(logits)


def _begin(model: S1Model, prompt: Prompt) -> Any:
    state = model.allocate(1, prompt.columns.shape[1] + MOST_FRAMES)
    model.prefill(state, 0, prompt.columns[:, :-1])
    model.activate(state, 0, prompt)
    return state


def listen(speaker: Speaker, sentences: Sequence[Sentence]) -> dict[str, float]:
    """Speak all sentences and hear them: word error and DNSMOS."""
    errors = words = frames = 0
    quality = []
    loaded = as_s1(speaker.loaded)
    for sentence in sentences:
        said = say(loaded.model, sentence)
        sound = loaded.codec.decode(said[1:].unsqueeze(0))[0].numpy()
        wave = as_int16(resample(sound, loaded.codec.sample_rate, RATE_HZ))
        found = compare(sentence.text, recognise(wave))
        errors, words, frames = errors + found.word_errors, words + found.words, frames + said.shape[1]
        quality.append(overall_quality(wave))
    return {"errors": errors, "words": words, "dnsmos": float(np.mean(quality)), "frames": frames}


def compare_logits(
    model: S1Model, sentences: Sequence[Sentence], said: Sequence[Tensor], logits: Sequence[Tensor]
) -> dict[str, float]:
    """Compare the main head's logits along what was said with those of the full formats."""
    same: list[Tensor] = []
    moved: list[Tensor] = []
    spread: list[Tensor] = []
    for sentence, frames, theirs in zip(sentences, said, logits, strict=True):
        ours = follow(model, sentence.prompt, frames)
        same.append(theirs.argmax(-1) == ours.argmax(-1))
        moved.append((theirs - ours).abs().mean(-1))
        spread.append(theirs.std(-1))
    return {
        "agreement": float(torch.cat(same).float().mean()),
        "moved": float(torch.cat(moved).mean()),
        "spread": float(torch.cat(spread).mean()),
        "compared": sum(len(each) for each in same),
    }


def time_steps(models: Sequence[S1Model], repeats: int) -> list[dict[str, float]]:
    """Time the slow stack and a whole frame of `ROWS` rows, the formats taking turns: medians, in milliseconds."""
    ones = torch.ones(ROWS)
    table = torch.rand(ROWS, SPAN, models[0].num_codebooks)
    states = []
    for model in models:
        state = model.allocate(ROWS, SPAN)
        state.active[:] = True
        state.position[:] = SPAN // 2
        states.append(state)
    times: list[list[list[float]]] = [[[], []] for _ in models]
    for _ in range(repeats):
        for model, state, kept in zip(models, states, times, strict=True):
            begin = time.thread_time()
            model.hidden(state, SPAN)
            middle = time.thread_time()
            model.step(state, SamplingTensors(ones, ones, ones, table), SPAN)
            kept[0].append(middle - begin)
            kept[1].append(time.thread_time() - middle)
            state.count[:], state.position[:], state.active[:] = 0, SPAN // 2, True
    return [{"slow_ms": 1e3 * float(np.median(a)), "frame_ms": 1e3 * float(np.median(b))} for a, b in times]


@torch.inference_mode()
def main() -> None:
    """Measure all formats, and print what was found."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--checkpoint", type=Path)
    parser.add_argument("--sentences", type=int, default=30)
    parser.add_argument("--skip", type=int, default=0, help="sentences that another run has measured")
    parser.add_argument("--seed", type=int, default=0, help="of the random numbers that draws are made by")
    parser.add_argument("--formats", nargs="+", default=FORMATS, choices=FORMATS)
    parser.add_argument("--repeats", type=int, default=100, help="of a step that is timed")
    parser.add_argument("--silent", action="store_true", help="compare logits and time steps only")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    directory = find_checkpoint(arguments.checkpoint)
    formats = [str(both).split("/") for both in ("full/full", *arguments.formats)]
    speakers = [open_format(directory, *both) for both in formats]
    sentences = choose_sentences(speakers[0], arguments.skip, arguments.sentences, arguments.seed)
    models = [as_s1(speaker.loaded).model for speaker in speakers]
    full = models[0]
    said = [say(full, sentence) for sentence in sentences]
    logits = [follow(full, sentence.prompt, frames) for sentence, frames in zip(sentences, said, strict=True)]
    rows = []
    timed = time_steps(models, arguments.repeats)
    for (weights, kv), speaker, model, times in zip(formats, speakers, models, timed, strict=True):
        row = {"weights": weights, "kv": kv, "model_mb": model.num_bytes / 1e6, "column_bytes": model.column_bytes}
        row |= times | compare_logits(model, sentences, said, logits)
        row |= {} if arguments.silent else listen(speaker, sentences)
        print("  ".join(f"{key} {_short(value)}" for key, value in row.items()), flush=True)
        rows.append(row)
    print(json.dumps({"sentences": len(sentences), "formats": rows}))


def _short(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)


if __name__ == "__main__":
    main()
