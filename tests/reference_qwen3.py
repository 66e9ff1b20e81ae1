"""Qwen3-TTS in plain functions of the published tensors: whole sequences, no cache, rotation of halves.

Written from the description of the architecture, not from this engine. Shapes: T positions, H heads, D head size.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

Weights = Mapping[str, Tensor]
PREDICTOR = "talker.code_predictor."


def text_rows(weights: Weights, ids: Tensor) -> Tensor:
    """Project the text embeddings of ids [T]: [T, dim]."""
    name = "talker.text_projection.linear_fc"
    x = weights["talker.model.text_embedding.weight"][ids]
    x = F.silu(F.linear(x, weights[f"{name}1.weight"], weights[f"{name}1.bias"]))
    return F.linear(x, weights[f"{name}2.weight"], weights[f"{name}2.bias"])


def code_row(weights: Weights, codes: Sequence[int]) -> Tensor:
    """Sum the embeddings of a frame's codes, or of the first one's id alone: [dim]."""
    x = weights["talker.model.codec_embedding.weight"][codes[0]]
    for book, code in enumerate(codes[1:]):
        x = x + weights[f"{PREDICTOR}model.codec_embedding.{book}.weight"][code]
    return x


def prompt(weights: Weights, text: Tensor, codec: Tensor, *, vector: Tensor | None, frames: Tensor | None) -> Tensor:
    """Embed a prompt [T, dim]; codec ids are -1 for none, -2 for the vector, -3 - f for frame f of the reference."""
    rows = list(text_rows(weights, text))
    for at, value in enumerate(codec.tolist()):
        if value >= 0:
            rows[at] = rows[at] + code_row(weights, [value])
        elif value == -2:
            assert vector is not None
            rows[at] = rows[at] + vector
        elif value < -2:
            assert frames is not None
            rows[at] = rows[at] + code_row(weights, frames[-3 - value].tolist())
    return torch.stack(rows)


def _norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    return weight * x / (x.square().mean(-1, keepdim=True) + eps).sqrt()


def _rotate(x: Tensor, base: float) -> Tensor:
    """Rotate x [T, H, D]: number i with number i + D / 2."""
    half = x.shape[-1] // 2
    angles = torch.arange(len(x))[:, None] / base ** (torch.arange(half) / half)
    cos, sin = angles.cos()[:, None], angles.sin()[:, None]
    first, second = x.split(half, dim=-1)
    return torch.cat((first * cos - second * sin, second * cos + first * sin), dim=-1)


def transformer(
    weights: Weights, prefix: str, config: Mapping[str, Any], x: Tensor, attention: list[Tensor] | None = None
) -> Tensor:
    """Run all layers and the last norm on x [T, dim]; add the attention [H, T, T] of each layer to a list."""
    heads, groups, eps = config["num_attention_heads"], config["num_key_value_heads"], config["rms_norm_eps"]
    size, base = config["head_dim"], config["rope_theta"]
    mask = torch.ones(len(x), len(x)).tril() == 0
    for layer in range(config["num_hidden_layers"]):
        own = f"{prefix}layers.{layer}."
        h = _norm(x, weights[f"{own}input_layernorm.weight"], eps)
        q, k, v = (
            F.linear(h, weights[f"{own}self_attn.{each}_proj.weight"]).unflatten(1, (-1, size)) for each in "qkv"
        )
        q, k = (
            _rotate(_norm(each, weights[f"{own}self_attn.{name}_norm.weight"], eps), base)
            for each, name in ((q, "q"), (k, "k"))
        )
        k, v = (each.repeat_interleave(heads // groups, dim=1) for each in (k, v))
        scores = torch.einsum("qhd,khd->hqk", q, k) / math.sqrt(size)
        shares = scores.masked_fill(mask, -math.inf).softmax(-1)
        if attention is not None:
            attention.append(shares)
        mixed = torch.einsum("hqk,khd->qhd", shares, v).flatten(1)
        x = x + F.linear(mixed, weights[f"{own}self_attn.o_proj.weight"])
        h = _norm(x, weights[f"{own}post_attention_layernorm.weight"], eps)
        gate, up = (F.linear(h, weights[f"{own}mlp.{each}_proj.weight"]) for each in ("gate", "up"))
        x = x + F.linear(F.silu(gate) * up, weights[f"{own}mlp.down_proj.weight"])
    return _norm(x, weights[f"{prefix}norm.weight"], eps)


def logits(weights: Weights, hidden: Tensor) -> Tensor:
    return F.linear(hidden, weights["talker.codec_head.weight"])


def code_logits(weights: Weights, config: Mapping[str, Any], hidden: Tensor, codes: Sequence[int]) -> Tensor:
    """Return the logits [n, V] of the codes after the given ones, one or more, from the backbone's output [dim]."""
    x = [hidden, weights["talker.model.codec_embedding.weight"][codes[0]]]
    x += [weights[f"{PREDICTOR}model.codec_embedding.{at}.weight"][code] for at, code in enumerate(codes[1:])]
    rows, name = torch.stack(x), f"{PREDICTOR}small_to_mtp_projection."
    if f"{name}weight" in weights:
        rows = F.linear(rows, weights[f"{name}weight"], weights[f"{name}bias"])
    out = transformer(weights, f"{PREDICTOR}model.", config["code_predictor_config"], rows)[1:]
    return torch.stack([F.linear(row, weights[f"{PREDICTOR}lm_head.{at}.weight"]) for at, row in enumerate(out)])


def generate(
    weights: Weights, values: Mapping[str, Any], start: Tensor, texts: Sequence[int], *, frames: int, penalty: float
) -> dict[str, Tensor]:
    """Generate greedily from an embedded prompt [T, dim]; `texts` are the text tokens of the frames' positions.

    Returns what an oracle stores: tokens, codes, hidden states and logits before each token.
    """
    config = values["talker_config"]
    vocab, end, books = config["vocab_size"], config["codec_eos_token_id"], config["num_code_groups"]
    x, tokens, codes, hidden, scores, depth = start, [], [], [], [], []
    while len(tokens) < frames:
        hidden.append(transformer(weights, "talker.model.", config, x)[-1])
        scores.append(logits(weights, hidden[-1]))
        penalised = scores[-1].clone()
        for token in set(tokens):
            penalised[token] *= penalty if penalised[token] < 0 else 1 / penalty
        blocked = torch.arange(vocab) >= vocab - 1024
        blocked[end] = len(tokens) < 2
        tokens.append(int(penalised.masked_fill(blocked, -math.inf).argmax()))
        if tokens[-1] == end or len(tokens) == frames:
            break
        frame = tokens[-1:]
        while len(frame) < books:
            frame.append(int(code_logits(weights, config, hidden[-1], frame)[-1].argmax()))
        depth.append(code_logits(weights, config, hidden[-1], frame[:-1]))
        text = texts[len(codes)] if len(codes) < len(texts) else values["tts_pad_token_id"]
        codes.append(frame)
        x = torch.cat((x, text_rows(weights, torch.tensor([text])) + code_row(weights, frame)))
    return {
        "tokens": torch.tensor(tokens),
        "codes": torch.tensor(codes),
        "hidden": torch.stack(hidden),
        "logits": torch.stack(scores),
        "code_logits": torch.stack(depth),
    }
