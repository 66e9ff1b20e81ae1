"""The Qwen3-TTS prompt: at each position a text token and, added to it, an id or a frame of the codec's side.

    INSTRUCTIONS              –          only if given
    role                      –          <|im_start|> assistant newline
    pad …                     tags       think, think-begin, language, think-end; or no-think, think-begin, think-end
    pad                       speaker    a preset's id, or the voice's vector; no position without a voice
    begin                     pad
    TEXT … end                pad …      whole text; or one token per frame (`settings.TextLayout`)
    pad                       begin

With a transcript and the codes of a reference (in-context cloning), the transcript precedes the text, and the codes
follow. Templates and layouts are those of QwenLM/Qwen3-TTS at 022e286.
Shapes: S positions, K codebooks, F frames.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor

from s1_mini.core.prompt import PromptTokens
from s1_mini.exceptions import CheckpointMismatchError, VoiceError
from s1_mini.families.qwen3.config import NUM_CONTROLS, Qwen3Config
from s1_mini.families.qwen3.tokenizer import Qwen2Tokenizer
from s1_mini.families.qwen3.voice import CODES, PRESET, VECTOR
from s1_mini.types import Voice

TEXTS = "texts"  # text tokens of the positions after the prompt
ROLE = "assistant"  # role of spoken texts


@dataclass(frozen=True)
class Columns:
    """Values of the codec's side of a position, as rows of the network's table of all codes.

    Code c of codebook k has the row k V + c, where V is the number of codes of a codebook. The rows of the codes are
    followed by those of the other ids of the first codebook, a row of zeros for padding, and a row of zeros that marks
    the position of a vector. Column k stores its row's number minus k V.
    """

    num_codebooks: int
    code_size: int

    @property
    def zero_row(self) -> int:
        return self.num_codebooks * self.code_size + NUM_CONTROLS

    @property
    def vector_row(self) -> int:
        return self.zero_row + 1

    def empty(self, count: int) -> np.ndarray:
        """Return positions without anything on the codec's side: [count, K]."""
        none = self.zero_row - self.code_size * np.arange(self.num_codebooks)
        return np.tile(none.astype(np.int64), (count, 1))

    def of(self, first: int) -> np.ndarray:
        """Return a position with one id of the first codebook's vocabulary, or `vector_row`: [1, K]."""
        column = self.empty(1)
        is_control = self.code_size <= first < self.code_size + NUM_CONTROLS
        column[0, 0] = first + (self.num_codebooks - 1) * self.code_size if is_control else first
        return column


@dataclass
class _Sides:
    """Both sides of a growing prompt."""

    text: list[int] = field(default_factory=list)
    codec: list[np.ndarray] = field(default_factory=list)

    def add(self, text: Sequence[int], codec: np.ndarray) -> None:
        """Add positions with these text tokens; one codec position [1, K] may serve all of them."""
        self.text += text
        self.codec.append(np.repeat(codec, len(text), axis=0) if len(codec) == 1 else codec)

    def items(self) -> np.ndarray:
        return np.concatenate((np.array(self.text, np.int64)[:, None], np.concatenate(self.codec)), axis=1)


def _digest(shared: np.ndarray, vector: np.ndarray | None) -> str:
    digest = hashlib.blake2b(shared.tobytes(), digest_size=16)
    digest.update(b"" if vector is None else vector.tobytes())
    return digest.hexdigest()


class PromptBuilder:
    """Builds the prompts of one checkpoint. Raises `CheckpointMismatchError` if its vocabulary does not fit."""

    def __init__(self, config: Qwen3Config, tokenizer: Qwen2Tokenizer) -> None:
        self._config, self._tokenizer = config, tokenizer
        self._columns = Columns(config.num_codebooks, config.code_size)
        *first, self.newline = self.with_role(ROLE, "")
        if first != [config.text.im_start, config.text.assistant] or tokenizer.highest_id >= config.text.im_start:
            raise CheckpointMismatchError(
                "vocab.json does not fit config.json: the ids of the tokens of prompts differ"
            )

    def build(
        self,
        text: str,
        voice: Voice | None,
        *,
        language: str | None,
        instructions: str = "",
        whole_text: bool,
        is_complete: bool = True,
    ) -> PromptTokens:
        """Build the prompt for `text`: items [S, K + 1], text token before codec values.

        `language` is a name in the config; with None, the model detects the language. Without `whole_text`, the text is
        read one token per frame, and the tokens after the items are `voice["texts"]` of the result. If the text is not
        complete, no end token follows it, and `rest` returns the tokens of its later parts. Raises `VoiceError`.
        """
        config, columns, ids = self._config, self._columns, self._config.text
        preset, vector = (None if voice is None else voice.tensors.get(name) for name in (PRESET, VECTOR))
        tokens = self.with_role(ROLE, text)
        role, body = tokens[:3], tokens[3:]
        sides = _Sides()
        if instructions:
            sides.add([*self.with_role("user", instructions), ids.im_end, self.newline], columns.empty(1))
        lengths = {"instructions": len(sides.text)}
        sides.add(role, columns.empty(1))
        self._add_voice(sides, self._tags(language, preset), preset, has_vector=vector is not None)
        conditions = {VECTOR: self._vector(vector)} if preset is None and vector is not None else {}
        pad, begin = columns.of(config.codec.pad), columns.of(config.codec.begin)
        num_shared = first = len(sides.text)
        reference, frames = self._reference(voice)
        if frames:
            conditions[CODES] = frames[0].T
        spoken, after = [*reference, *body, *([ids.end] if is_complete else [])], list[int]()
        span = first + len(reference), first + len(spoken)  # also of tokens that are read with later frames
        if whole_text:
            num_shared += len(reference)
            sides.add(spoken, pad)
            for each in (begin, *frames):
                sides.add([ids.pad] * len(each), each)
        else:
            side = np.concatenate([begin, *frames])
            num_shared += min(len(reference), len(side) - 1)
            beside, after = spoken[: len(side)], spoken[len(side) :]
            sides.add(beside + [ids.pad] * (len(side) - len(beside)), side)
        items = sides.items()
        conditions[TEXTS] = np.array(after, np.int64)
        digest = _digest(items[:num_shared], conditions.get(VECTOR))
        lengths["text"] = len(body) if whole_text else 0  # otherwise it is read with the reference, or later
        lengths["reference_audio"] = len(items) - sum(lengths.values())
        return PromptTokens(items, num_shared, digest, voice=conditions, text=span, lengths=lengths)

    def _reference(self, voice: Voice | None) -> tuple[list[int], list[np.ndarray]]:
        """Return the text and the frames of a voice with a transcript; nothing for other voices."""
        codes = None if voice is None else voice.tensors.get(CODES)
        if voice is None or codes is None or not voice.text:
            return [], []
        return self.with_role(ROLE, voice.text)[3:], [self._frames(codes)]

    def _add_voice(self, sides: _Sides, tags: Sequence[int], preset: Tensor | None, *, has_vector: bool) -> None:
        """Add the positions of the language and the voice, and the beginning of the text."""
        columns, ids = self._columns, self._config.text
        for tag in tags:
            sides.add([ids.pad], columns.of(tag))
        if preset is not None:
            sides.add([ids.pad], columns.of(int(preset[0])))
        elif has_vector:
            sides.add([ids.pad], columns.of(columns.vector_row))
        sides.add([ids.begin], columns.of(self._config.codec.pad))

    def token_ends(self, text: str) -> np.ndarray:
        """Return the end of each token of a text and of the end token after it, in bytes of UTF-8."""
        before = f"{ROLE}\n"
        ends = self._tokenizer.token_ends(before + text)[2:] - len(before)
        return np.append(ends, len(text.encode()))

    def rest(self, text: str, *, is_last: bool) -> list[int]:
        """Return the tokens of a further part of a text; the last part also gets the end token."""
        return [*self._tokenizer.encode(text), *([self._config.text.end] if is_last else [])]

    def with_role(self, role: str, text: str) -> list[int]:
        """Return <|im_start|>, a role, a newline and a text; tokenized together, as in the original."""
        return [self._config.text.im_start, *self._tokenizer.encode(f"{role}\n{text}")]

    def _tags(self, language: str | None, preset: Tensor | None) -> list[int]:
        config, ids = self._config, self._config.codec
        chosen = None if language is None else config.languages[language]
        if preset is not None and language in (None, "chinese"):
            dialects = {config.speakers[name]: each for name, each in config.dialects.items()}
            chosen = dialects.get(int(preset[0]), chosen)
        if chosen is None:
            return [ids.no_think, ids.think_begin, ids.think_end]
        return [ids.think, ids.think_begin, chosen, ids.think_end]

    def _vector(self, vector: Tensor) -> np.ndarray:
        if tuple(vector.shape) != (self._config.backbone.dim,):
            raise VoiceError(
                "voice", f"has a speaker vector of {list(vector.shape)}; the model needs [{self._config.backbone.dim}]"
            )
        found: np.ndarray = vector.float().numpy()
        return found

    def _frames(self, codes: Tensor) -> np.ndarray:
        books, size = self._config.num_codebooks, self._config.code_size
        if codes.dim() != 2 or codes.shape[0] != books or codes.shape[1] < 1:
            raise VoiceError("voice", f"has codes of shape {list(codes.shape)}; the model needs [{books}, frames]")
        frames: np.ndarray = codes.to(torch.int64).T.numpy()
        if frames.min() < 0 or frames.max() >= size:
            raise VoiceError("voice", f"has codes outside 0 … {size - 1}; it was probably encoded by a different codec")
        return frames
