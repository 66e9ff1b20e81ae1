"""The base class of causal codecs, which decode whole and streamed audio with the same code.

codes -> vectors -> (convolution) -> transformer -> upsampling -> residual convolutions -> samples
Shapes: B rows, K codebooks, F frames, C channels, T samples.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor, nn

from s1_mini.codecs.causal.layers import CausalConv1d, CausalConvTranspose1d, Chain, Decoder, WindowTransformer
from s1_mini.codecs.stream_state import SelectedStreams, StreamState
from s1_mini.exceptions import CapacityError

DECODE_BLOCK = 64  # frames that `decode` processes at once, so that its memory does not grow with the length


class DecoderParts(NamedTuple):
    """The layers that decode vectors to samples, after the codebooks."""

    front: CausalConv1d | None  # before the transformer
    transformer: WindowTransformer
    upsample: Chain  # pairs of a transposed convolution and a ConvNeXt block
    decoder: Decoder


class CausalCodec(nn.Module):
    """A codec of codebooks, a window transformer, upsampling and residual convolutions."""

    device: torch.device
    sample_rate: int  # Hz
    samples_per_frame: int
    num_codebooks: int
    max_frames: int  # of one stream

    @property
    def parts(self) -> DecoderParts:
        raise NotImplementedError

    def tables(self) -> list[Tensor]:
        """Return the vectors [N, C] of each codebook's entries in fp32; a frame is the sum of its codes' vectors."""
        raise NotImplementedError

    def frames(self, codes: Tensor, state: StreamState) -> Tensor:
        """Return the transformer's output [B, C, F] for the codes [B, K, F] of the next frames."""
        raise NotImplementedError

    def prepare(self) -> None:
        """Compute rotary tables, which checkpoints do not store, on the weights' device."""
        self.device = next(self.parameters()).device
        for module in self.modules():
            if isinstance(module, WindowTransformer):
                module.prepare(self.device)

    def push(self, codes: Tensor, state: StreamState) -> Tensor:
        """Decode the codes [B, K, F] of the next frames of the streams in `state` to samples [B, T]."""
        return self.sound(self.frames(codes, state), state).squeeze(1)

    def sound(self, x: Tensor, state: StreamState) -> Tensor:
        """Return samples [B, 1, T] of the transformer's output [B, C, F]."""
        parts = self.parts
        return parts.decoder(parts.upsample(x, state), state)

    def decode(self, codes: Tensor) -> Tensor:
        """Decode codes [B, K, F] to samples [B, T]. Raises `CapacityError` beyond `max_frames`."""
        stream = self.open(len(codes))
        return torch.cat([stream.push(block) for block in codes.split(DECODE_BLOCK, dim=-1)], dim=-1)

    @property
    def reach(self) -> int:
        """Number of the transformer's latest output frames that determine the state of the later layers."""
        steps, rate = 0.0, 1
        for layer in [*self.parts.upsample.modules(), *self.parts.decoder.modules()]:
            if isinstance(layer, CausalConv1d | CausalConvTranspose1d):
                steps += layer.context / rate
            if isinstance(layer, CausalConvTranspose1d):
                rate *= layer.stride
        return math.ceil(steps)

    def open(self, rows: int) -> CodecStream:
        return CodecStream(self, rows)

    def check_length(self, frames: int) -> None:
        """Raise `CapacityError` if a stream of this many frames is too long for the codec."""
        if frames > self.max_frames:
            rate = self.samples_per_frame / self.sample_rate
            raise CapacityError(
                f"{frames} frames ({frames * rate:.0f} s) exceed the codec's limit of {self.max_frames} "
                f"({self.max_frames * rate:.0f} s). Split the text or shorten the reference."
            )


class CodecStream:
    """B streams, which may advance independently."""

    def __init__(self, codec: CausalCodec, rows: int) -> None:
        self.rows = rows
        self._codec = codec
        self._state = StreamState()
        self._frames = [0] * rows

    def push(self, codes: Tensor, rows: Sequence[int] | None = None) -> Tensor:
        """Decode the codes [n, K, F] of the next frames of `rows`, or of all rows, to samples [n, T].

        Raises `CapacityError` for a stream that is too long for the codec. A call that raises changes nothing.
        """
        slot_ids = range(self.rows) if rows is None else rows
        assert codes.shape[:2] == (len(slot_ids), self._codec.num_codebooks), f"codes are {tuple(codes.shape)}"
        self._codec.check_length(max(self._frames[row] for row in slot_ids) + codes.shape[-1])
        state = SelectedStreams(self._state, self.rows, slot_ids, codes.device)
        samples = self._codec.push(codes, state)
        state.commit()
        for row in slot_ids:
            self._frames[row] += codes.shape[-1]
        return samples

    def skip(self, row: int, codes: Tensor) -> None:
        """Advance one row by the codes [K, F] of frames whose samples are not needed.

        This is faster than `push`: only the last `reach` frames pass the convolutions, which take most of the time.
        Raises `CapacityError` for a stream that is too long for the codec.
        """
        self._codec.check_length(self._frames[row] + codes.shape[-1])
        last: list[Tensor] = []
        for block in codes.unsqueeze(0).split(DECODE_BLOCK, dim=-1):
            state = SelectedStreams(self._state, self.rows, [row], codes.device)
            last = [torch.cat([*last, self._codec.frames(block, state)], dim=-1)[..., -self._codec.reach :]]
            state.commit()
        state = SelectedStreams(self._state, self.rows, [row], codes.device)
        self._codec.sound(last[0], state)
        state.commit()
        self._frames[row] += codes.shape[-1]

    def save(self, row: int) -> list[Tensor]:
        """Return a copy of the state of a stream that has begun."""
        return [torch.tensor(self._frames[row]), *self._state.save(row)]

    def load(self, row: int, saved: Sequence[Tensor]) -> None:
        """Replace a row's state by one from `save`."""
        self._state.load(row, saved[1:])
        self._frames[row] = int(saved[0])

    def reset(self, row: int) -> None:
        """Begin a new utterance in one row."""
        self._state.reset(row)
        self._frames[row] = 0
