"""The prompt: one sequence whose parts are tokenized separately. The part in braces repeats for each reference.

S1: `<|interleave|>` { speaker REFERENCE-TEXT codes `<|im_end|>` }* speaker TEXT

Audio8, whose parts are the lines of `_chat`: a chat whose system message has the reference, if there is one.

The model continues with semantic tokens until `<|im_end|>`. All references are speaker 0, whose tag `<|speaker:0|>` is
plain text, not a control token (content_sequence.py and generate_long at d3df505; processing_arktts.py at 14468db).
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Sequence

import numpy as np
import torch

from s1_mini.core.prompt import PromptTokens
from s1_mini.exceptions import TextError, VoiceError
from s1_mini.families.s1.config import S1Config
from s1_mini.families.s1.tokenizer import S1Tokenizer
from s1_mini.types import Voice

SPEAKER = "<|speaker:0|>"
_TAG = re.compile(r"<\|speaker:\d+\|>")  # any digits of Unicode, as in the original
_TASK = "convert the provided text to speech"


def build_prompt(tokenizer: S1Tokenizer, config: S1Config, text: str, voices: Sequence[Voice]) -> PromptTokens:
    """Build the prompt for `text` with the references `voices`. Its items [S, K + 1] are a token and its codes.

    Raises `VoiceError` if the codes of a voice do not fit the model, the errors of `_chat`, and
    `CheckpointMismatchError` if the vocabulary lacks a control token of prompts.
    """

    def part(tokens: list[int]) -> np.ndarray:
        items = np.zeros((len(tokens), config.num_codebooks + 1), np.int64)
        items[:, 0] = tokens
        return items

    layout = _chat if config.dialect.chat else _interleaved
    before, after = layout(tokenizer, voices)
    shared = [_codes_part(tokenizer, config, each) if isinstance(each, Voice) else part(each) for each in before]
    prefix = np.concatenate(shared)
    key = hashlib.blake2b(prefix.tobytes(), digest_size=16).hexdigest()
    spoken = part(tokenizer.encode(cleaned(text) if config.dialect.chat else text))
    lengths = {"text": len(spoken), "reference_audio": len(prefix)}
    span = len(prefix), len(prefix) + len(spoken)
    items = np.concatenate([prefix, spoken, part(after)])
    return PromptTokens(items, len(prefix), key, text=span if after else None, lengths=lengths)


def _interleaved(tokenizer: S1Tokenizer, voices: Sequence[Voice]) -> tuple[list[list[int] | Voice], list[int]]:
    """Return the parts of S1's prompt before the text, where a voice stands for its codes, and the tokens after it."""
    speaker, end = tokenizer.encode(SPEAKER), [tokenizer.control("im_end")]
    parts: list[list[int] | Voice] = [[tokenizer.control("interleave")]]
    for voice in voices:
        parts += [speaker, tokenizer.encode(voice.text), voice, end]
    return [*parts, speaker], []


def _chat(tokenizer: S1Tokenizer, voices: Sequence[Voice]) -> tuple[list[list[int] | Voice], list[int]]:
    """Return the same of Audio8's prompt.

    Raises `VoiceError` for more than one voice, and `TextError` for a voice without a transcript.
    """
    if len(voices) > 1:
        raise VoiceError("voice", f"{len(voices)} voices were given; this model supports one per request")
    start, end = tokenizer.control("im_start"), [tokenizer.control("im_end"), *tokenizer.encode("\n")]
    parts: list[list[int] | Voice] = [[start, *tokenizer.encode("system\n")]]
    for voice in voices:
        if not (transcript := cleaned(voice.text)):
            raise TextError("reference_text", "is needed; this model clones only with the exact words of the recording")
        tagged = transcript if _TAG.search(transcript) else SPEAKER + transcript
        parts += [tokenizer.encode(f"{_TASK} reference to the following:\n\nText:\n"), tokenizer.encode(tagged)]
        parts += [tokenizer.encode("\n\nSpeech:\n"), voice]
    parts += [] if voices else [tokenizer.encode(_TASK)]
    parts += [end, [start, *tokenizer.encode("user\n")]]
    return parts, [*end, start, *tokenizer.encode("assistant\n"), tokenizer.control("voice")]


def cleaned(text: str) -> str:
    """Return a text with a single space for each run of white space, and none at its ends, as Audio8 reads it."""
    return " ".join(text.split())


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
