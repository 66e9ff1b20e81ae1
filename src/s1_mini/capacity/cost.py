"""What a piece of work must read and compute, counted from the sizes of a checkpoint.

`docs/complexity.md` is these formulas in words; `s1-mini profile` divides them by the time that was measured, and
`s1-mini plan` by what a card can read and compute a second. Only shapes are looked at: the weights may be on meta.
Multiplying and adding counts as two operations. What is small beside it (norms, draws, embeddings) is not counted.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from torch import nn

from s1_mini.codecs.dac.model import DECODE_BLOCK, Dac
from s1_mini.families.s1.network import S1Network


@dataclass(frozen=True)
class Cost:
    """Bytes of weights, keys and values that are read, and operations."""

    num_bytes: float
    operations: float

    def __add__(self, other: Cost) -> Cost:
        return Cost(self.num_bytes + other.num_bytes, self.operations + other.operations)


def total(costs: Iterable[Cost]) -> Cost:
    """All together."""
    return sum(costs, Cost(0.0, 0.0))


class Costs:
    """The counts of one checkpoint."""

    def __init__(
        self,
        network: S1Network,
        codec: Dac,
        *,
        block: int = 256,
        slow_item: float | None = None,
        kv_item: float | None = None,
    ) -> None:
        """Count with prompts read `block` columns at a time.

        `slow_item` is how many bytes a weight of the slow layers has, `kv_item` a number of their keys and values,
        where those are others than the network's own.
        """
        config = network.config
        self._item = network.norm.weight.element_size()
        self._slow_item, self._block = slow_item or _item(network.layers), block
        slow = config.slow
        self.column_bytes = 2 * config.num_layers * slow.num_kv_heads * slow.head_dim * (kv_item or self._item)
        self._layers = _size(network.layers)
        self._head = _size(network.norm, network.output)
        self._fast = _size(network.fast_project_in, network.fast_layers, network.fast_norm, network.fast_output)
        self._passes = config.num_codebooks - 1  # of the fast transformer in a frame; the first has two columns
        # Each query head meets each key once and each value once.
        self._meeting = 4 * config.num_layers * config.slow.num_heads * config.slow.head_dim
        self._fast_meeting = 4 * config.num_fast_layers * config.fast.num_heads * config.fast.head_dim
        self._fast_column = 2 * config.num_fast_layers * config.fast.num_kv_heads * config.fast.head_dim * self._item
        codec_weights = [*codec.quantizer.post_module.parameters(), *codec.quantizer.upsample.parameters()]
        codec_weights += [*codec.decoder.parameters()]
        self._codec_bytes = sum(weight.numel() * weight.element_size() for weight in codec_weights)

    def prefill(self, columns: int, start: int = 0) -> Cost:
        """Read `columns` columns of one prompt at once, after `start` that are read already."""
        end = start + columns
        met = columns * start + columns * columns  # the mask hides the upper half, but it is computed
        return Cost(
            self._layers * self._slow_item + end * self.column_bytes,
            2 * self._layers * columns + self._meeting * met,
        )

    def read(self, columns: int, start: int = 0) -> Cost:
        """Read them in the chunks of the engine."""
        begins = range(start, start + columns, self._block)
        return total(self.prefill(min(self._block, start + columns - at), at) for at in begins)

    def slow_step(self, rows: int, span: int) -> Cost:
        """Make the main token of `rows` rows that look at `span` columns each."""
        return Cost(
            self._layers * self._slow_item + self._head * self._item + rows * span * self.column_bytes,
            rows * (2 * (self._layers + self._head) + self._meeting * span),
        )

    def fast_steps(self, rows: int) -> Cost:
        """Make the other codes of a frame of `rows` rows."""
        seen = sum(range(2, self._passes + 2))  # columns that the passes look at
        return Cost(
            self._passes * self._fast * self._item + rows * seen * self._fast_column,
            rows * (2 * self._fast * (self._passes + 1) + self._fast_meeting * (seen + 2)),
        )

    def step(self, rows: int, span: int) -> Cost:
        """Make a whole frame of `rows` rows."""
        return self.slow_step(rows, span) + self.fast_steps(rows)

    def codec_bytes(self, frames: int, block: int = DECODE_BLOCK) -> float:
        """Weights that the codec reads to decode `frames` frames, `block` at a time, whatever the rows."""
        return float(self._codec_bytes * -(-frames // block))


def _item(module: nn.Module) -> float:
    """Bytes of a weight on average: layers may be kept in eight bits, with norms in full."""
    weights = list(module.parameters())
    return sum(weight.numel() * weight.element_size() for weight in weights) / sum(weight.numel() for weight in weights)


def _size(*modules: nn.Module) -> int:
    return sum(weight.numel() for module in modules for weight in module.parameters())
