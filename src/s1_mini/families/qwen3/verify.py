"""Comparison of this engine with the original implementation of Qwen3-TTS.

An oracle has the original's results for one checkpoint: prompts position by position, hidden states and logits with
teacher forcing along a generated sequence, greedy tokens, speaker vectors, and every stage of the codec. The engine
recomputes them in fp32 with the code that also serves requests (prefill, single steps, streamed codec).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from s1_mini.codecs.blocks import result_of
from s1_mini.codecs.qwen12.encoder import Encoder
from s1_mini.codecs.qwen12.speaker import log_mel
from s1_mini.codecs.stream_state import StreamState
from s1_mini.core.messages import Conditions
from s1_mini.core.prompt import PromptTokens
from s1_mini.exceptions import VerificationError
from s1_mini.families.base import Check, Placement, check_size, compare_all
from s1_mini.families.codec_lm.model import SamplingTensors
from s1_mini.families.codec_lm.verify import run_forced
from s1_mini.families.qwen3.config import AUTO
from s1_mini.families.qwen3.loaded import LoadedQwen3, open_qwen3
from s1_mini.families.qwen3.model import Qwen3Model, Qwen3State
from s1_mini.families.qwen3.prompt import TEXTS, Columns
from s1_mini.families.qwen3.settings import Qwen3Settings
from s1_mini.families.qwen3.voice import CODES, PRESET, VECTOR
from s1_mini.layers.staging import Writes
from s1_mini.types import SamplingParams, Voice

# Inputs of the computation, and the origin of the oracle.
_INPUTS = {"config", "preset", "seed", "torch", "original", "voices", "waves"}
_CASE_INPUTS = {"text", "language", "speaker", "instruct", "voice", "whole_text"}
_CASE_INPUTS |= {"repetition_penalty", "max_new_tokens"}
_INEXACT = "chunked"  # the original decodes long audio in pieces, which differs from decoding it as a whole
_SCALE = 32_768  # of samples in 16 bits


def verify_qwen3(
    directory: Path, content: Mapping[str, Any], device: torch.device, tolerance: float
) -> Iterator[Check] | None:
    """Open a checkpoint and return its checks, computed as they are consumed; None if there is nothing to check.

    Raises `CheckpointError`. The iterator raises `VerificationError` for an oracle of a different checkpoint, and may
    raise any exception for a malformed oracle.
    """
    if not any(_cases(content)) and not {"decode", "encode"} & content.keys():
        return None
    loaded = open_qwen3(directory, Placement(device, torch.float32, torch.float32), Qwen3Settings())
    return _checks(loaded, content, tolerance)


def _cases(content: Mapping[str, Any]) -> Iterator[tuple[str, Mapping[str, Any]]]:
    for name, part in content.items():
        for number, case in enumerate(part if isinstance(part, list) else [part]):
            if isinstance(case, Mapping) and "layout_text" in case:
                yield f"{name} {number}" if isinstance(part, list) else name, case


def _checks(loaded: LoadedQwen3, content: Mapping[str, Any], tolerance: float) -> Iterator[Check]:
    for name, case in _cases(content):
        yield from _check_case(loaded, name, case, content.get("voices", {}), tolerance)
    waves = {name: wave.float() / _SCALE for name, wave in content.get("waves", {}).items()}
    named = {name.split(" ")[0] for name, _ in _cases(content)}
    for name, part in content.items():
        if name in named | _INPUTS:
            continue
        if name == "speaker":
            yield from _check_speaker(loaded, part, waves, tolerance)
        elif name in {"encode", "encode_parts"}:
            yield from _check_encoder(loaded, name, part, waves, tolerance)
        elif name in {"decode", "decode_long"}:
            yield from compare_all(name, _decode(loaded, part), part, {"codes", "first_sample", _INEXACT}, tolerance)
        else:
            yield Check(f"{name} (unknown)")


def _check_case(
    loaded: LoadedQwen3, name: str, case: Mapping[str, Any], voices: Mapping[str, Any], tolerance: float
) -> Iterator[Check]:
    model, config = loaded.model, loaded.config
    check_size("num_code_groups", case["codes"].shape[1], config.num_codebooks)
    check_size("vocab_size", case["logits"].shape[-1], config.vocab_size)
    voice, reference = _voice(loaded, case, voices), voices.get(case.get("voice", ""), {}).get("ref_code")
    language, instructions = case["language"].lower(), case.get("instruct") or ""
    prompt = model.prompts.build(
        case["text"],
        voice,
        language=None if language == AUTO else language,
        instructions=instructions,
        whole_text=case["whole_text"],
    )
    computed = _tokens(model, case["text"], instructions, voice)
    columns = Columns(config.num_codebooks, config.code_size)
    expected = np.concatenate([_column(columns, each, reference) for each in case["layout_codec"].tolist()])
    yield Check.equal(f"{name} layout_codec", torch.from_numpy(prompt.items[:, 1:]), torch.from_numpy(expected))
    computed["layout_text"] = torch.from_numpy(prompt.items[:, 0])
    computed["layout_after"] = torch.from_numpy(prompt.voice[TEXTS])
    items = torch.from_numpy(prompt.items)
    state, sampling = _open(model, prompt, case)
    computed["prompt"] = model.embed_prompt(state, 0, items)
    computed |= _run_forced(model, state, len(items), case["codes"].to(model.device))
    state, sampling = _open(model, prompt, case)
    computed |= _run_greedy(model, state, sampling, len(items), len(case["tokens"]))
    if "wave" in case:
        stream = loaded.codec.open(1)
        if reference is not None:
            stream.skip(0, reference.T.to(loaded.codec.device))
        computed["wave"] = stream.push(case["codes"].T.unsqueeze(0).to(loaded.codec.device))[0]
    rows = [*range(config.code_size), config.codec.end]
    stored = {**case, "logits": case["logits"][:, rows]}
    yield from compare_all(name, computed, stored, _CASE_INPUTS | {"layout_codec"}, tolerance)


def _voice(loaded: LoadedQwen3, case: Mapping[str, Any], voices: Mapping[str, Any]) -> Voice | None:
    if case.get("speaker"):
        return Voice({PRESET: torch.tensor([loaded.config.speakers[case["speaker"].lower()]])}, "")
    if "voice" not in case:
        return None
    stored = voices[case["voice"]]
    codes = {CODES: stored["ref_code"].T} if "ref_code" in stored else {}
    return Voice({VECTOR: stored["vector"], **codes}, stored.get("ref_text", ""))


def _tokens(model: Qwen3Model, text: str, instructions: str, voice: Voice | None) -> dict[str, Tensor]:
    """Return the tokens of the three templates, as the original's tokenizer returns them."""
    prompts, ids = model.prompts, model.config.text
    end, start = [ids.im_end, prompts.newline], [ids.im_start, ids.assistant, prompts.newline]
    tokens = {"input_ids": [*prompts.with_role("assistant", text), *end, *start]}
    if instructions:
        tokens["instruct_ids"] = [*prompts.with_role("user", instructions), *end]
    if voice is not None and voice.text:
        tokens["ref_ids"] = [*prompts.with_role("assistant", voice.text), *end]
    return {name: torch.tensor(each) for name, each in tokens.items()}


def _column(columns: Columns, value: int, reference: Tensor | None) -> np.ndarray:
    """Return the codec's side of a position.

    `value` is an id, -1 for none, -2 for the vector, or -3 - f for frame f of the reference.
    """
    if value >= 0:
        return columns.of(value)
    if value > -3:
        return columns.empty(1) if value == -1 else columns.of(columns.vector_row)
    if reference is None:
        raise VerificationError("the prompt of a case has frames of a reference, but its voice has none")
    frame: np.ndarray = reference[-3 - value].long().unsqueeze(0).numpy()
    return frame


def _open(model: Qwen3Model, prompt: PromptTokens, case: Mapping[str, Any]) -> tuple[Qwen3State, SamplingTensors]:
    """Prefill a prompt in a state of one row; also return greedy sampling."""
    penalty, frames = case["repetition_penalty"], len(case["tokens"]) + 1
    state = model.allocate(1, len(prompt.items) + frames)
    params = SamplingParams(temperature=0.0, top_k=0, top_p=1.0, repetition_penalty=penalty)
    writes = Writes(model.device)
    model.take(state, [0], [Conditions(params, seed=0, utterance=0, max_steps=frames, voice=prompt.voice)], writes)
    writes.run()
    items = torch.from_numpy(prompt.items).T
    model.prefill(state, 0, items[:, :-1])
    model.activate(state, 0, items)
    row = torch.ones(1, device=model.device)
    table = torch.zeros(1, frames, model.num_codebooks, device=model.device)
    return state, SamplingTensors(0 * row, row, penalty * row, table)


def _run_forced(model: Qwen3Model, state: Qwen3State, length: int, codes: Tensor) -> dict[str, Tensor]:
    """Run along `codes` [F, K] with teacher forcing; return the network's outputs at every step, and after them."""
    frames = torch.cat((state.texts[0, : len(codes), None], codes), dim=1)
    hidden, logits, code_logits = run_forced(model, state, length, frames)
    last = model.hidden(state, span=length + len(codes))
    return {
        "hidden": model.network.norm(torch.cat((hidden, last))),
        "logits": torch.cat((logits, model.network.semantic_logits(last))),
        "code_logits": code_logits,
    }


def _run_greedy(
    model: Qwen3Model, state: Qwen3State, sampling: SamplingTensors, start: int, most: int
) -> dict[str, Tensor]:
    """Generate until the end token or until there are `most` tokens.

    As in the original, the last token has no frame in `codes`.
    """
    codes: list[Tensor] = []
    tokens: list[Tensor] = []
    while len(tokens) < most:
        frame = model.step(state, sampling, span=start + len(tokens))[0]
        is_end = bool(frame[-2])
        tokens.append(torch.tensor(model.config.codec.end, device=model.device) if is_end else frame[1])
        if is_end:
            break
        codes.append(frame[1:-2])
    return {"tokens": torch.stack(tokens), "codes": torch.stack(codes[: most - 1])}


def _check_speaker(
    loaded: LoadedQwen3, stored: Mapping[str, Any], waves: Mapping[str, Tensor], tolerance: float
) -> Iterator[Check]:
    encoder = loaded.encoders()[1]
    for name, part in stored.items():
        wave = waves[name].to(loaded.model.device)
        computed = {"vector": encoder.encode(wave), "mel": result_of(log_mel(wave, encoder.config.mel_dim)).T}
        yield from compare_all(f"speaker {name}", computed, part, (), tolerance)


def _check_encoder(
    loaded: LoadedQwen3, group: str, stored: Mapping[str, Any], waves: Mapping[str, Tensor], tolerance: float
) -> Iterator[Check]:
    """Check the codes of all waves, or the results of the encoder's parts for the wave `reference`."""
    encoder = loaded.encoders()[0]
    if group == "encode":
        computed = {name: encoder.encode(waves[name].to(loaded.model.device)).T for name in stored}
    else:
        computed = _encoder_parts(encoder, waves["reference"].to(loaded.model.device))
    yield from compare_all(group, computed, stored, (), tolerance)


def _encoder_parts(encoder: Encoder, wave: Tensor) -> dict[str, Tensor]:
    """Return the results of the convolutions, the transformer and the last convolution, [1, C, steps] each."""
    blocks: list[Tensor] = []
    found: dict[str, Tensor] = {}

    def keep(_: nn.Module, inputs: tuple[Tensor, ...], output: Tensor) -> None:
        padding = encoder.downsample.kernel_size[0] - encoder.downsample.stride[0]  # before the first step
        steps = sum(block.shape[-1] for block in blocks)
        found.update(transformer=inputs[0][..., padding : padding + steps], downsampled=output)

    hooks = (
        encoder.convolutions.register_forward_hook(lambda _, __, output: blocks.append(output)),
        encoder.downsample.register_forward_hook(keep),
    )
    encoder.encode(wave)
    for hook in hooks:
        hook.remove()
    return {"seanet": torch.cat(blocks, dim=-1), **found}


def _decode(loaded: LoadedQwen3, stored: Mapping[str, Any]) -> dict[str, Tensor]:
    codec, state = loaded.codec, StreamState()
    codes = stored["codes"].long().to(codec.device)
    check_size("num_quantizers", codes.shape[1], codec.num_codebooks)
    if "first_sample" in stored:
        start, length = int(stored["first_sample"]), stored["whole"].shape[-1]
        return {"whole": codec.decode(codes)[:, None, start : start + length]}
    entries = codes + codec.table.shape[1] * torch.arange(codec.num_codebooks, device=codec.device).unsqueeze(1)
    computed = {"quantized": F.embedding(entries, codec.table.flatten(0, 1)).sum(1).transpose(1, 2)}
    computed["pre_conv"] = codec.front(computed["quantized"], state)
    computed["transformer"] = codec.transformer(computed["pre_conv"], state)
    computed["upsampled"] = codec.upsample(computed["transformer"], state)
    computed["audio"] = codec.decoder(computed["upsampled"], state)
    if "prefix" in stored:
        frames = stored["prefix"].shape[-1] // codec.samples_per_frame
        computed["prefix"] = codec.decode(codes[..., :frames]).unsqueeze(1)
    return computed
