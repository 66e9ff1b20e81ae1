"""The state of Encodec's layers between two chunks, so that any division into chunks gives the result of one call.

A convolution depends on past inputs. At the beginning of a stream, there are none: the stream's first inputs, mirrored,
replace them; if there are too few, zeros are added. A strided convolution also mirrors the end of the stream to
complete its last step. To do so, it must know where in a chunk the stream ends. Padding after the end changes nothing.
Shapes: n rows of a call, C channels, T steps.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from s1_mini.codecs.stream_state import NoState, SelectedStreams, StreamState


class WholeStream(NoState):
    """The state for calls that are whole streams; it stores nothing."""

    def mirror(self, _layer: nn.Module, x: Tensor, context: int, stride: int) -> Tensor:
        """Mirror `context` steps of x [n, C, T] at its beginning, and at its end up to a multiple of `stride` steps."""
        after = -x.shape[-1] % stride
        if context == after == 0:
            return x
        missing = max(0, max(context, after) + 1 - x.shape[-1])
        x = F.pad(F.pad(x, (0, missing)) if missing else x, (context, after), mode="reflect")
        return x[..., : x.shape[-1] - missing]

    def grow(self, factor: int) -> None:
        """Do nothing: lengths of whole streams need not be tracked."""

    def recur(self, lstm: nn.LSTM, x: Tensor) -> Tensor:
        """Return the output of the LSTM for x [T, n, C]."""
        return lstm(x)[0]


class StreamChunk(SelectedStreams):
    """The next chunk of several streams.

    `reset_mask` [n] is true for rows that begin a new stream. `lengths` [n] are the numbers of valid steps in the
    network's input; a stream that continues has only valid steps. `slot_ids` [n] are the rows of `whole` to use; None
    means all. If the tensors are on the device, they may change between replays of a CUDA graph.
    """

    def __init__(
        self, whole: StreamState, num_rows: int, reset_mask: Tensor, lengths: Tensor, slot_ids: Tensor | None = None
    ) -> None:
        super().__init__(whole, num_rows, slice(None) if slot_ids is None else slot_ids, reset_mask.device)
        self._reset_mask, self._lengths = reset_mask, lengths

    def mirror(self, layer: nn.Module, x: Tensor, context: int, stride: int) -> Tensor:
        """Prepend the past to x [n, C, T], or the mirrored beginning of x in a new stream; mirror ends in place.

        T must be a multiple of `stride`.
        """
        if context:
            x = self.extend((layer, ""), x, context, beginning=self._beginning(x, context))
        if stride > 1:
            self._mirror_end(x, context, stride)
            self._lengths = (self._lengths + stride - 1) // stride
        return x

    def grow(self, factor: int) -> None:
        """Multiply the lengths of the streams by `factor`, because a layer has upsampled them."""
        self._lengths = self._lengths * factor

    def recur(self, lstm: nn.LSTM, x: Tensor) -> Tensor:
        """Return the output of the LSTM for x [T, n, C], from the stored state of each row."""
        shape = [0, lstm.num_layers, lstm.hidden_size]
        pasts = [self._get((lstm, name), shape, x.dtype, x.device) for name in ("h", "c")]
        out, ends = lstm(x, tuple(self._read(past).transpose(0, 1).contiguous() for past in pasts))
        self._ends += [(past, end.transpose(0, 1)) for past, end in zip(pasts, ends, strict=True)]
        return out

    def _read(self, past: Tensor, beginning: Tensor | None = None) -> Tensor:
        # Masked, not multiplied by 0, because old rows may contain NaN or infinity.
        rows, mask = super()._read(past), self._reset_mask.view(-1, *[1] * (past.dim() - 1))
        return rows.masked_fill(mask, 0) if beginning is None else torch.where(mask, beginning, rows)

    def _beginning(self, x: Tensor, context: int) -> Tensor:
        """Return the inputs of x after the first, mirrored [n, C, context], with zeros where a stream has too few."""
        first = x[..., 1 : context + 1]
        first = F.pad(first, (0, context - first.shape[-1])) if first.shape[-1] < context else first
        is_over = torch.arange(1, context + 1, device=x.device) >= self._lengths[:, None]
        return first.masked_fill(is_over[:, None], 0).flip(-1)

    def _mirror_end(self, joined: Tensor, context: int, stride: int) -> None:
        """Mirror the end of each row in place, as far as its last step needs; later inputs are not used."""
        end, offsets = context + self._lengths[:, None], torch.arange(stride - 1, device=joined.device)
        to, source = end + offsets, end - 2 - offsets
        is_inside = to < joined.shape[-1]
        # Outside the tensor, the first input is overwritten with itself.
        to, source = (torch.where(is_inside, each, 0) for each in (to, source))
        is_short = self._reset_mask & (self._lengths <= context)
        rows = (-1, joined.shape[1], -1)
        values = joined.gather(-1, source[:, None].expand(*rows))
        values = values.masked_fill((is_short[:, None] & is_inside)[:, None], 0)
        joined.scatter_(-1, to[:, None].expand(*rows), values)
