"""A second, plain implementation of the S1 network: whole sequence, no cache, no batch, no slicing.

Tests compare the engine's network with it, for options that the original's oracle does not cover. Works on
published names.
"""

from __future__ import annotations

import torch
from torch import Tensor

from s1_mini.families.s1.config import S1Config
from s1_mini.layers.transformer import BlockConfig

Weights = dict[str, Tensor]


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    return x / torch.sqrt((x * x).mean(-1, keepdim=True) + eps) * weight


def rotate(x: Tensor, base: float) -> Tensor:
    """Rotate [T, D] by its positions 0 … T-1, pair by pair."""
    out = x.clone()
    for position in range(x.shape[0]):
        for pair in range(x.shape[1] // 2):
            angle = torch.tensor(float(position)) * (1.0 / (base ** torch.tensor(2 * pair / x.shape[1])))
            cos, sin = (f(angle).to(torch.bfloat16).float() for f in (torch.cos, torch.sin))
            a, b = x[position, 2 * pair], x[position, 2 * pair + 1]
            out[position, 2 * pair] = a * cos - b * sin
            out[position, 2 * pair + 1] = b * cos + a * sin
    return out


def block(x: Tensor, weights: Weights, prefix: str, config: BlockConfig, base: float) -> Tensor:
    def get(name: str) -> Tensor | float:
        return weights.get(f"{prefix}{name}", 0.0)

    size, length = config.head_dim, x.shape[0]
    normal = rms_norm(x, get("attention_norm.weight"), config.norm_eps)
    qkv = normal @ get("attention.wqkv.weight").T + get("attention.wqkv.bias")
    queries, keys, values = qkv.split(
        (config.num_heads * size, config.num_kv_heads * size, config.num_kv_heads * size), dim=-1
    )
    heads = []
    for head in range(config.num_heads):
        group = head // (config.num_heads // config.num_kv_heads)
        query = queries[:, head * size : (head + 1) * size]
        key = keys[:, group * size : (group + 1) * size]
        value = values[:, group * size : (group + 1) * size]
        if config.qk_norm:
            query = rms_norm(query, get("attention.q_norm.weight"), config.norm_eps)
            key = rms_norm(key, get("attention.k_norm.weight"), config.norm_eps)
        scores = rotate(query, base) @ rotate(key, base).T / size**0.5
        future = torch.ones(length, length, dtype=torch.bool).triu(1)
        heads.append(scores.masked_fill(future, float("-inf")).softmax(-1) @ value)
    x = x + torch.cat(heads, dim=-1) @ get("attention.wo.weight").T + get("attention.wo.bias")
    normal = rms_norm(x, get("ffn_norm.weight"), config.norm_eps)
    gate = normal @ get("feed_forward.w1.weight").T
    return x + (gate * gate.sigmoid() * (normal @ get("feed_forward.w3.weight").T)) @ get("feed_forward.w2.weight").T


def backbone(config: S1Config, weights: Weights, tokens: Tensor, begin: int, end: int) -> tuple[Tensor, Tensor]:
    """Return the hidden state [T, dim] before the norm, and logits [T, vocab], of tokens [K + 1, T]."""
    rows = []
    for first, *codes in tokens.T.tolist():
        x = weights["embeddings.weight"][first]
        if begin <= first <= end:
            for book, code in enumerate(codes):
                x = x + weights["codebook_embeddings.weight"][book * config.codebook_size + code]
            if config.scale_codebook_embeddings:
                x = x / (config.num_codebooks + 1) ** 0.5
        rows.append(x)
    x = torch.stack(rows)
    for layer in range(config.num_layers):
        x = block(x, weights, f"layers.{layer}.", config.backbone, config.rope_base)
    head = weights["embeddings.weight" if config.tie_word_embeddings else "output.weight"]
    return x, rms_norm(x, weights["norm.weight"], config.backbone.norm_eps) @ head.T


def depth(config: S1Config, weights: Weights, hidden: Tensor, codes: list[int]) -> Tensor:
    """Return logits [K - 1, codebook] of codebooks 1 … K-1, from the backbone's output [dim] and the frame's codes."""
    if config.norm_fastlayer_input:
        hidden = rms_norm(hidden, weights["norm.weight"], config.backbone.norm_eps)
    if "fast_project_in.weight" in weights:
        hidden = weights["fast_project_in.weight"] @ hidden + weights["fast_project_in.bias"]
    x = torch.stack([hidden, *(weights["fast_embeddings.weight"][code] for code in codes[:-1])])
    for layer in range(config.num_depth_layers):
        x = block(x, weights, f"fast_layers.{layer}.", config.depth, config.rope_base)
    x = rms_norm(x, weights["fast_norm.weight"], config.depth.norm_eps)
    return (x @ weights["fast_output.weight"].T)[1:]
