"""Compare this engine with the original implementation of S1, or of Audio8.

An oracle has the original's results for one checkpoint: prompts, hidden states and logits with teacher forcing along a
generated sequence, greedy tokens, examples of the sampler, and the outputs of all parts of the codec. One of Audio8
also has texts with their prompts, and examples of repetition-aware sampling. The engine recomputes them in fp32 with
the code that also serves requests (prefill, single steps, streamed codec), with full heads and the original's
repetition penalty.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from s1_mini.codecs.dac.model import Dac
from s1_mini.codecs.stream_state import StreamState
from s1_mini.core.prompt import PromptTokens
from s1_mini.families.base import Check, Placement, check_size, compare_all
from s1_mini.families.codec_lm.model import SamplingTensors
from s1_mini.families.codec_lm.verify import run_forced
from s1_mini.families.s1.kernels.sampling import penalise, probabilities
from s1_mini.families.s1.loaded import LoadedS1, open_s1
from s1_mini.families.s1.model import S1Model, S1State
from s1_mini.families.s1.prompt import SPEAKER
from s1_mini.families.s1.settings import S1Settings
from s1_mini.kernels.ranking import MIN_TEMPERATURE
from s1_mini.types import Voice

# Entries about the origin of the oracle, which cannot be computed from the checkpoint.
_PROVENANCE = ("config", "codec_config", "generation_config", "preset", "seed", "torch", "upstream_commit", "sampling")
_CASE_INPUTS = {"prompt", "seq", "text", "ref_text", "ref_codes", "ended", *_PROVENANCE}
_CHUNKS = 1, 3, 13  # frames per call of the streamed codec


def verify_s1(
    directory: Path, content: Mapping[str, Any], device: torch.device, tolerance: float
) -> Iterator[Check] | None:
    """Load a checkpoint; return an iterator that computes one check after another, or None if nothing can be checked.

    Raises `CheckpointError`. The iterator raises `VerificationError` for an oracle of a different checkpoint, and may
    raise any exception for a malformed oracle.
    """
    known = {"codec", "sampler", "prompts", "ras"} & set(content)
    if not known and not any(isinstance(part, Mapping) and "prompt" in part for part in content.values()):
        return None
    loaded = open_s1(
        directory, Placement(device, torch.float32, torch.float32), S1Settings(heads="full", repetition_mode="upstream")
    )
    return _checks(loaded, content, tolerance)


def _checks(loaded: LoadedS1, content: Mapping[str, Any], tolerance: float) -> Iterator[Check]:
    for name, part in content.items():
        if name == "sampler":
            yield from _check_sampler(loaded.model, part)
        elif name == "prompts":
            yield from _check_prompts(loaded.model, part)
        elif name == "ras":
            yield from _check_ras(loaded.model, part)
        elif name == "codec":
            yield from _check_codec(loaded.encoding_codec(), part, tolerance)
        elif isinstance(part, Mapping) and "prompt" in part:
            yield from _check_case(loaded.model, name, part, tolerance)
        elif name not in _PROVENANCE:
            yield Check(f"{name} (unknown)")


def _check_sizes(model: S1Model, case: Mapping[str, Any]) -> None:
    config = model.network.config
    check_size("num_codebooks", len(case["prompt"]) - 1, config.num_codebooks)
    if "slow_logits" in case:
        check_size("vocab_size", case["slow_logits"].shape[-1], config.vocab_size)
    if "hidden" in case:
        check_size("dim", case["hidden"].shape[-1], *sorted({config.backbone.dim, config.depth.dim}))


def _check_case(model: S1Model, name: str, case: Mapping[str, Any], tolerance: float) -> Iterator[Check]:
    _check_sizes(model, case)
    prompt = case["prompt"].long()
    rebuilt = model.prompt(case["text"], _voices(case)) if "text" in case else _rebuild_prompt(model, prompt)
    yield Check.equal(f"{name} prompt", torch.from_numpy(rebuilt.items).T, prompt)
    computed: dict[str, Tensor] = {}
    if "seq" in case:
        sequence, start = case["seq"].long(), prompt.shape[1]
        if not torch.equal(sequence[:, :start], prompt) or sequence.shape[1] == start:
            raise ValueError(f"{name}: seq does not continue prompt")
        forced = _run_forced(model, prompt, sequence)
        computed = {key: _like(model, each, case[key]) for key, each in forced.items() if key in case}
        generated = sequence[:, start:]
        if case.get("sampling", {}).get("temperature", 1.0) <= MIN_TEMPERATURE:
            generated = _run_greedy(model, prompt, sequence.shape[1] - start)
            yield Check.equal(f"{name} greedy tokens", generated, sequence[:, start:])
        computed["codes"] = generated[1:, generated[0] != model.end]
    stored = {key: each.clamp_min(0) if key == "ras_windows" else each for key, each in case.items()}
    yield from compare_all(name, computed, stored, _CASE_INPUTS, tolerance)


def _voices(case: Mapping[str, Any]) -> list[Voice]:
    """Return the reference of a case; without codes in the case, it has a frame of zeros."""
    if case.get("ref_text") is None:
        return []
    return [Voice({"codes": case["ref_codes"]}, case["ref_text"])]


def _check_prompts(model: S1Model, examples: list[Mapping[str, Any]]) -> Iterator[Check]:
    """Check the prompts of texts, except those with the name of a control token, which stays text in this engine."""
    for index, each in enumerate(examples):
        voices = _voices({"ref_codes": torch.zeros(model.num_codebooks, 1, dtype=torch.int64), **each})
        if any(name in f"{each['text']} {each['ref_text']}" for name in model.tokenizer.special_tokens):
            continue
        tokens = torch.from_numpy(model.prompt(each["text"], voices).items[:, 0])
        frame = torch.full((len(voices),), model.semantic[0])
        yield Check.equal(f"prompts {index}", tokens, torch.cat((each["prefix"], frame, each["suffix"])))


def _like(model: S1Model, computed: Tensor, stored: Tensor) -> Tensor:
    """Project hidden states with `fast_project_in` if the oracle has stored projected states."""
    if computed.shape[-1] == model.network.config.backbone.dim != stored.shape[-1] == model.network.config.depth.dim:
        return model.network.fast_project_in(computed)
    return computed


def _rebuild_prompt(model: S1Model, prompt: Tensor) -> PromptTokens:
    """Extract text and references from a prompt's tokens, and build a prompt from them again."""
    tokenizer = model.tokenizer
    tokens, end = prompt[0].tolist(), tokenizer.control("im_end")
    *references, last = _split_at(tokens[1:], end)
    voices, start = [], 1
    for tokens in references:
        num_text = sum(token < tokenizer.semantic_begin for token in tokens)
        codes = prompt[1:, start + num_text : start + len(tokens)]
        voices.append(Voice({"codes": codes}, _text(model, tokens[:num_text])))
        start += len(tokens) + 1
    return model.prompt(_text(model, last), voices)


def _split_at(tokens: list[int], mark: int) -> list[list[int]]:
    parts: list[list[int]] = [[]]
    for token in tokens:
        if token == mark:
            parts.append([])
        else:
            parts[-1].append(token)
    return parts


def _text(model: S1Model, tokens: list[int]) -> str:
    return model.tokenizer.decode(tokens).removeprefix(SPEAKER)


def _run_forced(model: S1Model, prompt: Tensor, sequence: Tensor) -> dict[str, Tensor]:
    """Return the network's outputs at every step along `sequence` [K + 1, T], with teacher forcing.

    Also return the tokens that repetition-aware sampling compares each step's token with, the oldest first.
    """
    length = prompt.shape[1]
    frames = sequence[:, length:].T.to(model.device)
    outputs = run_forced(model, _open(model, prompt, sequence.shape[1]), length, frames)
    computed = dict(zip(("hidden", "slow_logits", "fast_logits"), outputs, strict=True))
    state, windows = _open(model, prompt, sequence.shape[1]), []
    for index, frame in enumerate(frames):
        oldest = max(0, index - 1) % state.window.history.shape[1]  # the first frame is not recorded
        windows.append(state.window.history[0, :, 0].roll(-oldest))
        model.advance(state, frame.unsqueeze(0))
    norms = model.network.config.norm_fastlayer_input
    depth_input = model.network.norm(computed["hidden"]) if norms else computed["hidden"]
    return computed | {"fast_input": depth_input, "ras_windows": torch.stack(windows)}


def _run_greedy(model: S1Model, prompt: Tensor, num_frames: int) -> Tensor:
    """Return greedily generated frames [K + 1, frames]. As in the oracle, an end token does not end generation."""
    length = prompt.shape[1]
    state = _open(model, prompt, length + num_frames)

    def row(value: float) -> Tensor:
        return torch.tensor([value], device=model.device)

    table = torch.zeros(1, num_frames, model.num_uniforms, device=model.device)
    sampling = SamplingTensors(row(0.0), row(1e-6), row(1.0), table)
    frames = [model.step(state, sampling, span=length + index)[0, :-2] for index in range(num_frames)]
    return torch.stack(frames, dim=1)


def _open(model: S1Model, prompt: Tensor, length: int) -> S1State:
    state = model.allocate(1, length)
    model.prefill(state, 0, prompt[:, :-1])
    model.activate(state, 0, prompt)
    return state


def _check_sampler(model: S1Model, vectors: list[Mapping[str, Any]]) -> Iterator[Check]:
    for index, vector in enumerate(vectors):
        logits = _allowed(model, vector["logits"]) if vector.get("kind") == "semantic" else vector["logits"]
        if "prev" in vector:
            previous, penalty = vector["prev"].long().unsqueeze(0), torch.tensor([float(vector["r"])])
            logits = penalise(logits.unsqueeze(0), previous, torch.ones_like(previous, dtype=torch.bool), penalty)[0]
        yield Check.close(f"sampler {index}", _probabilities(logits, vector), vector["probs"], 1e-6)


def _check_ras(model: S1Model, vectors: list[Mapping[str, Any]]) -> Iterator[Check]:
    ras = model.network.config.ras
    for index, vector in enumerate(vectors):
        assert ras is not None
        logits = _allowed(model, vector["logits"])
        normal = _probabilities(logits, vector)
        high = _probabilities(logits, {**vector, "t": ras.temperature, "p": ras.top_p})
        token = torch.arange(len(logits))
        repeats = torch.isin(token, vector["previous"]) & (token >= model.semantic[0]) & (token <= model.semantic[1])
        computed = {"normal": normal, "high": high, "probs": normal * ~repeats + normal[repeats].sum() * high}
        yield from compare_all(f"ras {index}", computed, vector, {"logits", "previous", "t", "k", "p"}, 1e-6)


def _allowed(model: S1Model, logits: Tensor) -> Tensor:
    """Return logits [V] of which only those of semantic tokens and of the end are finite."""
    token = torch.arange(len(logits))
    is_allowed = (token >= model.semantic[0]) & (token <= model.semantic[1]) | (token == model.end)
    return logits.masked_fill(~is_allowed, -torch.inf)


def _probabilities(logits: Tensor, vector: Mapping[str, Any]) -> Tensor:
    """Return the probabilities [V] for logits [V], with a vector's temperature, top-p and, if it has one, top-k."""
    temperature, top_p = (torch.tensor([float(vector[key])]) for key in ("t", "p"))
    top_k = torch.tensor([int(vector["k"])]) if "k" in vector else None
    return probabilities(logits.unsqueeze(0), temperature, top_p, top_k)[0]


def _check_codec(codec: Dac, stored: Mapping[str, Tensor], tolerance: float) -> Iterator[Check]:
    computed: dict[str, Tensor] = {}
    if "codes" in stored:
        codes, codec_state = stored["codes"].to(codec.device), StreamState()
        check_size("num_codebooks", codes.shape[-2], codec.config.num_codebooks)
        computed["zq"] = codec.quantizer.decode(codes)
        computed["post"] = codec.quantizer.post_module(computed["zq"], codec_state)
        computed["z"] = codec.quantizer.upsample(computed["post"], codec_state)
        computed["audio"] = codec.decoder(computed["z"], codec_state)
        computed["prefix20"] = codec.decode(codes[..., :20]).unsqueeze(1)
        computed["prefix"] = codec.decode(codes[..., : codes.shape[-1] // 2]).unsqueeze(1)
        for size in _CHUNKS:
            stream = codec.open(1)
            streamed = torch.cat([stream.push(part) for part in codes.split(size, dim=-1)], dim=-1).unsqueeze(1)
            yield Check.close(f"codec audio in chunks of {size}", streamed, stored["audio"], tolerance)
    if "codes_clamped" in stored:
        clamped = codec.decode(stored["codes_clamped"].to(codec.device)).unsqueeze(1)
        computed["audio_clamped"] = clamped[..., : stored["audio_clamped"].shape[-1]]
    if "wav" in stored:
        wave, encoder_state = stored["wav"].flatten().to(codec.device), StreamState()
        computed["enc_codes"] = codec.encode(wave).unsqueeze(0)
        computed["enc_lens"] = torch.tensor([computed["enc_codes"].shape[-1]])
        padded = F.pad(wave, (0, -len(wave) % codec.samples_per_frame)).view(1, 1, -1)
        computed["enc"] = codec.encoder(padded, encoder_state)
        computed["pre"] = codec.latents(padded, StreamState())
    yield from compare_all("codec", computed, stored, {"codes", "codes_clamped", "wav", *_PROVENANCE}, tolerance)
