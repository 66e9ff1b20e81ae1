"""The S1 prompt: one sequence whose parts are tokenized separately. The part in braces repeats for each reference.

`<|interleave|>` { speaker REFERENCE-TEXT codes `<|im_end|>` }* speaker TEXT

The model continues with semantic tokens until `<|im_end|>`. All references are speaker 0. In S1, the speaker's tag
`<|speaker:0|>` is plain text, not a control token (content_sequence.py and generate_long at d3df505).
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

import numpy as np
import torch

from s1_mini.core.prompt import PromptTokens
from s1_mini.exceptions import VoiceError
from s1_mini.families.s1.config import S1Config
from s1_mini.families.s1.tokenizer import S1Tokenizer
from s1_mini.types import Voice

SPEAKER = "<|speaker:0|>"


def build_prompt(tokenizer: S1Tokenizer, config: S1Config, text: str, voices: Sequence[Voice]) -> PromptTokens:
    """Build the prompt for `text` with the references `voices`. Its items [S, K + 1] are a token and its codes.

    Raises `VoiceError` if the codes of a voice do not fit the model, and `CheckpointMismatchError` if the vocabulary
    has no token `<|interleave|>`.
    """

    def part(tokens: list[int]) -> np.ndarray:
        items = np.zeros((len(tokens), config.num_codebooks + 1), np.int64)
        items[:, 0] = tokens
        return items

    speaker, end = part(tokenizer.encode(SPEAKER)), part([tokenizer.control("im_end")])
    shared = [part([tokenizer.control("interleave")])]
    for voice in voices:
        shared += [speaker, part(tokenizer.encode(voice.text)), _codes_part(tokenizer, config, voice), end]
    prefix = np.concatenate([*shared, speaker])
    key = hashlib.blake2b(prefix.tobytes(), digest_size=16).hexdigest()
    spoken = part(tokenizer.encode(text))
    lengths = {"text": len(spoken), "reference_audio": len(prefix)}
    return PromptTokens(np.concatenate([prefix, spoken]), len(prefix), key, lengths=lengths)


def _codes_part(tokenizer: S1Tokenizer, config: S1Config, voice: Voice) -> np.ndarray:
    codes, num_semantic = voice.tensors["codes"], tokenizer.semantic_end - tokenizer.semantic_begin + 1
    if codes.dim() != 2 or codes.shape[0] != config.num_codebooks or codes.shape[1] < 1:
        raise VoiceError(
            "voice", f"has codes of shape {tuple(codes.shape)}; the model needs [{config.num_codebooks}, frames]"
        )
    items = codes.to(torch.int64).T.numpy()
    if items.min() < 0 or items[:, 0].max() >= num_semantic or items.max() >= config.codebook_size:
        raise VoiceError(
            "voice", f"has codes outside 0 … {num_semantic - 1}; it was probably encoded by a different codec"
        )
    return np.concatenate((items[:, :1] + tokenizer.semantic_begin, items), axis=1)
