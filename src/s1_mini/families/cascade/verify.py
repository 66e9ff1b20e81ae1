"""Compare the outputs of this engine's stages with those of the original implementation.

An oracle is a file of tensors named `CASE.NAME`; docs/internals/cascade_measured.md lists the names. All stages run
greedily and in fp32.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from s1_mini.core.messages import Begin, Conditions, Prefill
from s1_mini.core.prompt import PromptTokens
from s1_mini.core.stage import Progress
from s1_mini.families.base import Check, Placement, StageChain, oracle_cases
from s1_mini.families.cascade.loaded import LoadedCascade
from s1_mini.families.cascade.prompt import build_prompt
from s1_mini.families.cascade.settings import CascadeSettings
from s1_mini.types import SamplingParams, Voice

INPUTS = ("text", "tokens", "semantic_prompt", "coarse_prompt", "fine_prompt", "min_eos_p")
OUTPUTS = ("semantic", "coarse", "fine", "wave")
_GREEDY = SamplingParams(temperature=0.0, top_p=1.0, seed=0)


def verify_cascade(
    directory: Path, content: Mapping[str, Any], device: torch.device, tolerance: float
) -> Iterator[Check] | None:
    """Return an iterator that computes one check after another; None if the oracle has nothing to check.

    Iterating raises `CheckpointError`, and `TextError` for too many tokens. With a malformed oracle, it may raise other
    exceptions.
    """
    cases = oracle_cases(content)
    if not any(set(case) & set(OUTPUTS) for case in cases.values()):
        return None
    placement = Placement(device, torch.float32, torch.float32)
    return (
        check
        for title, case in cases.items()
        for check in _check_case(directory, placement, title or "oracle", case, tolerance)
    )


def _check_case(
    directory: Path, placement: Placement, label: str, case: Mapping[str, Tensor], tolerance: float
) -> Iterator[Check]:
    """Check each stage whose output is in the case. Its input is the case's output of the previous stage."""
    eos = float(case["min_eos_p"]) if "min_eos_p" in case else 0.0
    loaded = LoadedCascade(directory, placement, CascadeSettings(min_eos_p=eos, fine_temperature=0.0))
    tensors = {name: case[name].long().cpu() for name in INPUTS[2:5] if name in case}
    if "text" in case:
        ids = loaded.tokenizer.encode(bytes(case["text"].to(torch.uint8).tolist()).decode())
        yield Check.equal(f"{label} tokens", torch.tensor(ids), case["tokens"])
    ids = case["tokens"].tolist() if "tokens" in case else []
    prompt = build_prompt(loaded.config.numbers, ids, Voice(tensors, "") if tensors else None)
    chain = loaded.chain(1, loaded.max_positions)
    steps = loaded.config.numbers.max_semantic
    for number, name in enumerate(OUTPUTS):
        if name not in case:
            continue
        before = OUTPUTS[number - 1] if number else "tokens"
        if before not in case:
            raise KeyError(f"{label}.{before}")
        items: np.ndarray = case[before].long().cpu().numpy().T if number else prompt.items
        steps = steps if number else min(steps, len(case[name]) or steps)
        output = run_stage(chain, number, items, prompt, max_steps=steps)
        expected = case[name]
        if name == "wave":
            yield Check.close(f"{label} {name}", torch.from_numpy(output), expected.flatten().float(), tolerance)
        else:
            output = output % loaded.config.numbers.codebook_size if number else output
            yield Check.equal(f"{label} {name}", torch.from_numpy(output.T if number else output), expected)
    for name in sorted(set(case) - {*INPUTS, *OUTPUTS}):
        yield Check(f"{label} {name} (unknown)")


@torch.inference_mode()
def run_stage(chain: StageChain, number: int, items: np.ndarray, prompt: PromptTokens, *, max_steps: int) -> np.ndarray:
    """Return the output items of one stage for one utterance, with all input items available."""
    policy, stage = chain.policies[number], chain.stages[number]
    conditions = Conditions(_GREEDY, 0, 0, max_steps, prompt.voice)
    consumed = units = 0
    output = np.zeros((0, *policy.output.shape), np.dtype(policy.output.dtype))
    while True:
        progress = Progress(len(items), True, consumed, len(output), units, max_steps, "throughput", prompt.facts)
        unit = None if policy.is_done(progress) else policy.next_unit(progress)
        if unit is None:
            return output
        past = output[len(output) - unit.past :]
        begin = Begin(
            slot=0,
            number=units,
            inputs=items[unit.start : unit.stop],
            past=past,
            produced=len(output),
            steps=unit.steps,
            size=unit.size,
            context=consumed - unit.start,
            consumes=unit.consumes,
            conditions=conditions,
        )
        stage.begin([begin])
        if unit.prefill:
            stage.prefill([Prefill(0, 0, unit.prefill)])
        parts = [output]
        steps = 0
        while steps < unit.steps:
            result = stage.step([0], unit.size)()
            if result.late:  # no token from a worker yet
                continue
            steps += 1
            parts.append(np.asarray(result.values[0])[: result.counts[0]])
            if result.stops[0]:
                break
        output = np.concatenate(parts)
        consumed, units = consumed + unit.consumes, units + 1
