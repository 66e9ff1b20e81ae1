"""Compare this engine with the original implementation of SpeechT5.

An oracle is a `.safetensors` file of inputs and expected outputs; docs/mel.md lists its tensors, each named
`CASE.NAME`. The engine recomputes the outputs in float32 with the code that also serves requests (text encoder,
single steps with caches, vocoder in windows), with the dropout masks of the case or without dropout.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from s1_mini.codecs.hifigan.model import Edges
from s1_mini.codecs.hifigan.stage import context_of
from s1_mini.families.base import Check, Placement, check_size, compare_all, oracle_cases
from s1_mini.families.mel.config import MelConfig
from s1_mini.families.mel.loaded import LoadedMel, open_mel
from s1_mini.families.mel.model import MelModel, MelState
from s1_mini.families.mel.settings import MelSettings

INPUTS = ("tokens", "speaker", "masks", "frames_in", "mel_in")
FREE = 10.0  # factor of the tolerance in free-running decoding, where rounding errors accumulate
CHUNK = 16  # frames per window of the vocoder


def verify_mel(
    directory: Path, content: Mapping[str, Any], device: torch.device, tolerance: float
) -> Iterator[Check] | None:
    """Load a checkpoint; return an iterator that computes one check after another, or None if nothing can be checked.

    Raises `CheckpointError`; iterating raises `VerificationError` for tensors of other sizes than the config's. With a
    malformed oracle, it may raise other exceptions.
    """
    cases = oracle_cases(content)
    if not any("tokens" in case or "mel_in" in case for case in cases.values()):
        return None
    placement = Placement(device, torch.float32, torch.float32)
    dropped = any("masks" in case for case in cases.values())
    loaded = open_mel(directory, placement, MelSettings(prenet_dropout="on" if dropped else "off"))
    return _checks(loaded, cases, tolerance)


def _checks(loaded: LoadedMel, cases: Mapping[str, Mapping[str, Tensor]], tolerance: float) -> Iterator[Check]:
    for name, case in cases.items():
        _check_sizes(loaded.model.config, case)
        computed = _decode(loaded.model, case) if "tokens" in case else {}
        if "tokens" in case and "free_mel" in case:
            computed["free_mel"], computed["free_steps"] = _run_free(loaded.model, case)
        if "mel_in" in case:
            computed["wave"] = _speak(loaded, case["mel_in"])
        tolerances = {"free_mel": FREE * tolerance, "wave": tolerance / 10}
        for part in sorted(case):
            each = tolerances.get(part, tolerance)
            yield from compare_all(name, computed, {part: case[part]}, INPUTS, each)


def _check_sizes(config: MelConfig, case: Mapping[str, Tensor]) -> None:
    if "speaker" in case:
        check_size("speaker_embedding_dim", case["speaker"].numel(), config.speaker_size)
    for part in {"frames_in", "mel_in"} & case.keys():
        check_size("num_mel_bins", case[part].shape[-1], config.num_bins)


def _decode(model: MelModel, case: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Encode a case's text, and run the decoder on the case's `frames_in`, if it has them."""
    encoded = model.encode(case["tokens"].to(model.device).long().view(1, -1))
    outputs = {"encoded": encoded[0]}
    if "frames_in" not in case:
        return outputs
    frames, rows = case["frames_in"].to(model.device).float(), []
    state = open_state(model, case, len(frames))
    for frame in frames:
        state.frame[0] = frame
        rows.append(step_alone(model, state))
    table = torch.stack(rows)
    outputs["mel"] = table[:, :-2].reshape(-1, model.config.num_bins)
    outputs["postnet"] = model.postnet(outputs["mel"])
    outputs["stops"] = table[:, -2]
    return outputs


def _run_free(model: MelModel, case: Mapping[str, Tensor]) -> tuple[Tensor, Tensor]:
    """Generate from the decoder's own output until it stops; return the mel after the post-net, and the steps."""
    most = min(model.steps_for(case["tokens"].numel(), model.settings.max_length_ratio), model.config.max_steps)
    state = open_state(model, case, most)
    rows: list[Tensor] = []
    while len(rows) < most and not (rows and bool(rows[-1][-2])):
        rows.append(step_alone(model, state))
    mel = torch.stack(rows)[:, :-2].reshape(-1, model.config.num_bins)
    return model.postnet(mel), torch.tensor([len(rows)])


def open_state(model: MelModel, case: Mapping[str, Tensor], steps: int) -> MelState:
    """Return the state of a case before its first step. If the case has no masks, there is no dropout."""
    device = model.device
    state = model.allocate(1, steps)
    model.read(state, case["tokens"].to(device).long().view(1, -1), torch.zeros(1, dtype=torch.int64, device=device))
    if state.kept is not None:
        state.kept.fill_(True)
    masks = case.get("masks")
    if masks is not None:
        model.keep(state, 0, 0, masks[:steps].bool().flatten(1))
    model.begin(state, 0, case["speaker"].view(-1), 0)
    state.active.fill_(True)
    return state


def step_alone(model: MelModel, state: MelState) -> Tensor:
    """Return the next step [R * M + 2] of the only utterance."""
    return model.step(state, state.max_steps, model.config.max_text)[0]


def _speak(loaded: LoadedMel, mel: Tensor) -> Tensor:
    """Return the audio of a mel after the post-net, computed window by window."""
    vocoder, around = loaded.vocoder, context_of(loaded.vocoder)
    mel, waves = mel.to(vocoder.device).float(), []
    for begin in range(0, len(mel), CHUNK):
        count = min(CHUNK, len(mel) - begin)
        first, last = max(0, begin - around), min(len(mel), begin + count + around)
        window = torch.zeros(1, count + 2 * around, mel.shape[1], device=mel.device)
        window[0, around - (begin - first) :][: last - first] = mel[first:last]
        edges = Edges(first - begin, last - begin, axis=vocoder.axis)
        waves.append(vocoder(window.transpose(1, 2) if vocoder.axis == 2 else window, edges)[0])
    return torch.cat(waves)
