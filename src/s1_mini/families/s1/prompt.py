"""The S1 prompt: one flat sequence in which every part is tokenised by itself.

`<|interleave|>` { speaker REFERENCE-TEXT codes `<|im_end|>` }* speaker TEXT

The model goes on with semantic tokens until `<|im_end|>`. All references are speaker 0, whose tag
`<|speaker:0|>` is no control token in S1 but plain text (content_sequence.py and generate_long at d3df505).
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from s1_mini.exceptions import VoiceError
from s1_mini.families.s1.config import S1Config
from s1_mini.families.s1.tokenizer import S1Tokenizer
from s1_mini.types import Voice

SPEAKER = "<|speaker:0|>"


@dataclass(frozen=True)
class Prompt:
    """What the model is asked to continue."""

    columns: Tensor  # int64 [K + 1, S]: main token, then codes
    num_shared: int  # leading columns that depend on the voice alone, not on the text
    prefix_key: str = ""  # the same for prompts that share those columns


def build_prompt(tokenizer: S1Tokenizer, config: S1Config, text: str, voices: Sequence[Voice]) -> Prompt:
    """Write the prompt for `text`, spoken like `voices`. Raises `VoiceError` if codes do not fit the model."""
    num_codebooks = config.num_codebooks

    def text_part(part: str) -> Tensor:
        return _control_part(tokenizer.encode(part), num_codebooks)

    speaker = text_part(SPEAKER)
    end = _control_part([tokenizer.control("im_end")], num_codebooks)
    parts = [_control_part([tokenizer.control("interleave")], num_codebooks)]
    for voice in voices:
        parts += [speaker, text_part(voice.text), _codes_part(tokenizer, config, voice.tensors["codes"]), end]
    shared = [*parts, speaker]
    columns = torch.cat([*shared, text_part(text)], dim=1)
    num_shared = sum(part.shape[1] for part in shared)
    return Prompt(columns, num_shared, prefix_key(columns[:, :num_shared]))


def prefix_key(columns: Tensor) -> str:
    """Name columns [K + 1, n] by what stands in them."""
    return hashlib.blake2b(columns.contiguous().numpy().tobytes(), digest_size=16).hexdigest()


def _control_part(tokens: list[int], num_codebooks: int) -> Tensor:
    columns = torch.zeros(num_codebooks + 1, len(tokens), dtype=torch.int64)
    columns[0] = torch.tensor(tokens, dtype=torch.int64)
    return columns


def _codes_part(tokenizer: S1Tokenizer, config: S1Config, codes: Tensor) -> Tensor:
    num_semantic = tokenizer.semantic_end - tokenizer.semantic_begin + 1
    if codes.dim() != 2 or codes.shape[0] != config.num_codebooks or codes.shape[1] < 1:
        raise VoiceError(
            "voice", f"codes have shape {tuple(codes.shape)}; the model needs [{config.num_codebooks}, frames]"
        )
    codes = codes.to(torch.int64)
    if int(codes.min()) < 0 or int(codes[0].max()) >= num_semantic or int(codes.max()) >= config.codebook_size:
        raise VoiceError("voice", f"codes lie outside 0 … {num_semantic - 1}; were they made by another codec?")
    return torch.cat((codes[:1] + tokenizer.semantic_begin, codes))
