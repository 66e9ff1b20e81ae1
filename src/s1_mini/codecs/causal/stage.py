"""The codec's decoder as a stage: chunks of codes in, audio out. Each slot holds the state of its stream.

The last chunk of an utterance may be padded to the next chunk size: because the codec is causal, padding does not
change the samples before it, and afterwards the slot begins a new stream.
Shapes: n slots of a call, K codebooks, F frames, T samples.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from functools import partial
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from s1_mini.byte_cache import ByteCache
from s1_mini.codecs.causal.channels_last import ChannelsLastDecoder
from s1_mini.codecs.causal.codec import CausalCodec, CodecStream
from s1_mini.codecs.stage import ChunkStage, Graphs
from s1_mini.core.messages import Begin
from s1_mini.core.stage import Chunks
from s1_mini.kernels.backend import batch_invariance
from s1_mini.runtime.compiled import Compilable
from s1_mini.runtime.graphs import Buffer, Wait
from s1_mini.runtime.rows import fit
from s1_mini.runtime.stage import Pending

if TYPE_CHECKING:
    from s1_mini.codecs.causal.compiled import CompiledStreams

MAX_FRAMES = 400  # limit of a captured call; larger calls would saturate the GPU and delay first chunks
START_BYTES = 2**28  # limit of all cached start states; a state of Qwen3-TTS's codec is 2.6 MB in float16


class CausalDecoder(ChunkStage):
    """Decodes one stream in each slot."""

    def __init__(
        self,
        codec: CausalCodec,
        policy: Chunks,
        *,
        number: int,
        batch_invariant: bool = False,
        reference: str = "",
    ) -> None:
        """Decode with the weights of `codec`; `number`, the stage's index in its chain, chooses its GPU stream.

        With `batch_invariant`, the samples of a chunk do not depend on the rest of its batch, even on a GPU.
        `reference` is the name of an array of codes [K, F] in `Conditions.voice`. If a voice has this array, its
        utterances begin in the state that decoding these codes leaves. Such states are cached.
        """
        assert not reference or min(policy.classes) == 1, "references of any length need chunks of one frame"
        self._reference, self._starts = reference, ByteCache[list[Tensor]](START_BYTES)
        self._batch_invariant = batch_invariant
        super().__init__(codec.device, policy, number=number, rate=codec.samples_per_frame)
        self._codec, self._stream = codec, codec.open(policy.slots)
        self._compiled: CompiledStreams | None = None
        # By slot. An utterance keeps its streams when compiled ones become active before it ends.
        self._streams: dict[int, CodecStream | CompiledStreams] = {}

    def make_graphs(self) -> None:
        slots = self._policy.slots + 1  # the last slot is for padding rows
        decoder = self._decoder = ChannelsLastDecoder(self._codec, slots)

        def call(codes: Tensor, rows: Tensor) -> Tensor:
            with batch_invariance(self._batch_invariant):
                return decoder.push_slots(codes.transpose(1, 2), rows[0], rows[1] == 0).float()

        books = self._codec.num_codebooks
        self._capture(call, lambda key: [Buffer((*key, books)), Buffer((2, key[0]))], own_kernels=True)

    def compilable(self) -> Compilable | None:
        if self.device.type != "cpu" or any(part.dtype != torch.float32 for part in self._codec.parameters()):
            return None

        from s1_mini.codecs.causal import compiled  # numba takes a moment to import

        streams = compiled.CompiledStreams(self._codec, self._policy.slots)

        def use() -> None:
            compiled.check(self._codec, streams)
            self._compiled = streams

        return Compilable("the codec", compiled.MODULE, streams.formats, use)

    def step(self, slots: Sequence[int], size: int) -> Pending:
        """Decode the chunks of some slots. Raises `CapacityError` beyond the codec's longest stream."""
        for slot in slots:
            begin = self._begun[slot]
            self._codec.check_length(self._preceding(begin) + begin.produced // self._rate + len(begin.inputs))
        return super().step(slots, size)

    def _launch(self, graphs: Graphs, begun: list[Begin], size: int) -> Wait:
        chunks = []
        for begin in begun:
            feed = partial(self._feed, graphs, begin.slot)
            has_begun = begin.number > 0 or self._precede(begin, self._decoder, feed)
            chunks.append((begin.slot, has_begun, begin.inputs))
        return self._call(graphs, chunks, size)

    def _call(self, graphs: Graphs, chunks: Sequence[tuple[int, bool, np.ndarray]], size: int) -> Wait:
        """Launch one call for several chunks, each given as slot, whether its stream has begun, and codes [F, K]."""
        n = fit(self._policy.rows, len(chunks))
        codes = np.zeros((n, size, self._codec.num_codebooks), np.int64)
        # First row: slots. Second row: 1 if the slot's stream has begun; 0 if it begins now, and in captures.
        rows = np.zeros((2, n), np.int64)
        rows[0] = self._policy.slots
        for at, (slot, has_begun, inputs) in enumerate(chunks):
            codes[at, : len(inputs)] = inputs
            rows[:, at] = slot, has_begun
        return graphs.launch((n, size), codes, rows)

    def _alone(self, begin: Begin) -> np.ndarray:
        if begin.number == 0:
            streams = self._streams[begin.slot] = self._compiled or self._stream
            streams.reset(begin.slot)
            self._precede(begin, streams, lambda codes: streams.skip(begin.slot, self._on_device(codes)))
        codes = self._on_device(begin.inputs.T).unsqueeze(0)
        wave: np.ndarray = self._streams[begin.slot].push(codes, [begin.slot])[0].float().cpu().numpy()
        return wave

    def _on_device(self, codes: np.ndarray) -> Tensor:
        return torch.from_numpy(np.ascontiguousarray(codes)).to(self.device)

    def _preceding(self, begin: Begin) -> int:
        """Return the number of frames of the voice's reference, or 0 without one."""
        voice = begin.conditions.voice
        return int(voice[self._reference].shape[-1]) if self._reference in voice else 0

    def _precede(
        self,
        begin: Begin,
        streams: CodecStream | CompiledStreams | ChannelsLastDecoder,
        feed: Callable[[np.ndarray], None],
    ) -> bool:
        """If the voice has a reference, put the state after it into the slot, from the cache or with `feed`.

        Returns whether the voice has a reference. `feed` decodes codes [K, F] in the slot.
        """
        if not self._preceding(begin):
            return False
        codes = np.asarray(begin.conditions.voice[self._reference], np.int64)
        # The key names the type of stream, because each type has another layout. A captured call that fails is repeated
        # on plain streams.
        key = f"{type(streams).__name__} {hashlib.blake2b(codes.tobytes()).hexdigest()}"
        saved = self._starts.get(key)
        # On the GPU stream of the captured calls, so that the copies run between them.
        between = nullcontext if self._graphs is None else self._graphs.on_stream
        if saved is not None:
            with between():
                streams.load(begin.slot, saved)
        else:
            feed(codes)
            with between():
                saved = streams.save(begin.slot)
            self._starts.put(key, saved, sum(each.nbytes for each in saved))
        return True

    def _feed(self, graphs: Graphs, slot: int, codes: np.ndarray) -> None:
        """Decode codes [K, F] as the beginning of a stream, in captured calls, and discard the samples."""
        at = 0
        while at < codes.shape[1]:
            size = max(each for each in self._policy.classes if each <= codes.shape[1] - at)
            self._call(graphs, [(slot, at > 0, codes[:, at : at + size].T)], size)
            at += size
