"""Speak a text of any length, such as a book, as several requests in order, in bounded memory."""

from __future__ import annotations

from collections.abc import Container, Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple

from s1_mini.text.markup import last_voice
from s1_mini.text.split import Stretches, sentence_spans
from s1_mini.text.tidy import is_speakable
from s1_mini.types import MAX_SEED, AudioChunk, Joined, TTSRequest

if TYPE_CHECKING:
    from s1_mini.engine import ProductionTTSEngine

BLOCK_LENGTH = 4_000  # characters of a request: a few minutes of audio
PARAGRAPH = "\n\n"
LETTERS_A_SECOND = 15.0  # estimate until the first request is complete


class Block(NamedTuple):
    """A part of a text, the position of its first character, and whether it ends within a sentence."""

    text: str
    start: int
    continues: bool = False


def cut_blocks(text: str, max_length: int) -> list[Block]:
    """Cut a text into blocks of at most `max_length` characters: between paragraphs, otherwise after a sentence.

    Blocks without anything to speak are left out.
    """
    blocks, start = [], 0
    while start < len(text):
        stop, continues = _end_of_block(text, start, max_length)
        if is_speakable(text[start:stop]):
            blocks.append(Block(text[start:stop], start, continues))
        start = stop
    return blocks


def _end_of_block(text: str, start: int, max_length: int) -> tuple[int, bool]:
    """Return where a block ends, and whether it ends within a sentence."""
    limit = start + max_length
    if limit >= len(text):
        return len(text), False
    if (found := text.rfind(PARAGRAPH, start + 1, limit)) >= 0:
        return found + len(PARAGRAPH), False
    if len(spans := sentence_spans(text[start:limit])) > 1:
        return start + spans[-2][1], False
    space = text.rfind(" ", start + 1, limit)
    return limit if space < 0 else space + 1, True


def with_voices(blocks: Sequence[Block], voices: Container[str]) -> list[Block]:
    """Begin each block of a marked text with the mark of the voice that spoke last."""
    voice, begun = None, []
    for block in blocks:
        mark = "" if voice is None else f"[{voice}] "
        begun.append(block._replace(text=mark + block.text, start=block.start - len(mark)))
        voice = last_voice(block.text, voices) or voice
    return begun


class Reading:
    """The speech of a text in blocks. `position` is the estimated number of characters spoken so far."""

    def __init__(self, engine: ProductionTTSEngine, request: TTSRequest, blocks: Sequence[Block]) -> None:
        """`request` has the options of all blocks."""
        self.position = 0.0
        self._engine, self._request, self._blocks = engine, request, blocks
        self._stretches = Stretches()
        self._num_done = 0  # characters of the complete blocks
        self._origin_s = self._block_s = 0.0  # audio of the complete blocks, and of the current one

    def chunks(self, *, streams: bool) -> Iterator[AudioChunk]:
        """Yield the audio of all blocks; each begins when the previous one has its first audio.

        `streams` is that of `speak`, whose errors are raised.
        """
        current, following = None, self._begin(0, streams=streams)
        try:
            for number, block in enumerate(self._blocks):
                current, following = following, None
                is_last = number + 1 == len(self._blocks)
                for chunk in current:
                    if following is None and not is_last:
                        following = self._begin(number + 1, streams=streams)
                    yield self._placed(chunk, block, is_last=is_last)
                self._origin_s, self._block_s = self._origin_s + self._block_s, 0.0
                self.position = self._num_done = block.start + len(block.text)
        finally:
            for output in (current, following):
                if output is not None:
                    output.close()

    def _begin(self, number: int, *, streams: bool) -> Any:
        """Begin a block. The first one has the request's own seed, so that a short text is spoken as without blocks."""
        sampling, block = self._request.sampling, self._blocks[number]
        if (seed := sampling.get("seed")) is not None:
            sampling = {**sampling, "seed": (seed + number) % (MAX_SEED + 1)}
        request = replace(self._request, text=block.text, sampling=sampling, joined=self._joined(number))
        return self._engine.speak(request, streams=streams)

    def _joined(self, number: int) -> Joined | None:
        block, is_last = self._blocks[number], number + 1 == len(self._blocks)
        if is_last and number == 0:
            return None
        return self._stretches.join(block.text, continues=block.continues, is_last=is_last)

    def _placed(self, chunk: AudioChunk, block: Block, *, is_last: bool) -> AudioChunk:
        """Return a chunk of a block with the positions and times of its words in the whole text and audio."""
        self._block_s += len(chunk.audio) / chunk.sample_rate
        letters_a_second = self._num_done / self._origin_s if self._origin_s else LETTERS_A_SECOND
        self.position = block.start + min(letters_a_second * self._block_s, 0.99 * len(block.text))
        words = tuple(
            replace(
                word,
                start=word.start + block.start,
                stop=word.stop + block.start,
                start_s=word.start_s + self._origin_s,
                end_s=word.end_s + self._origin_s,
            )
            for word in chunk.words
        )
        is_over = is_last or chunk.finish_reason == "length"
        return replace(chunk, words=words, finish_reason=chunk.finish_reason if is_over else None)
