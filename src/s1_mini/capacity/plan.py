"""What a checkpoint can do on a card: memory, slots, floors, streams, machines. Data for a table and for a machine."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

from s1_mini.capacity.cards import Card, machines_with
from s1_mini.capacity.floor import Efficiency, Floors, StepTime, Streams
from s1_mini.capacity.memory import AUTO_SLOTS, CONTEXT_BYTES, SPAN, count_slots, fit_slots
from s1_mini.capacity.sizes import Formats, Sizes
from s1_mini.config import EngineConfig
from s1_mini.exceptions import ParameterError

ROWS = (1, 16, 64, 128)

WeightFormat = Literal["half", "int8", "fp8"]
KVFormat = Literal["half", "fp8"]
CodecFormat = Literal["half", "float32"]


@dataclass(frozen=True)
class Wish:
    """What is planned for. `columns` of a slot: None lets the engine choose; `context` of them are in use."""

    columns: int | None = None
    context: int = 300
    weights: WeightFormat = "half"  # of the large products
    kv: KVFormat = "half"
    codec: CodecFormat = "half"
    max_slots: int = AUTO_SLOTS
    efficiency: Efficiency = field(default_factory=Efficiency)

    @property
    def formats(self) -> Formats:
        """Bytes of the numbers."""
        return Formats(
            large=2 if self.weights == "half" else 1,
            kv=2 if self.kv == "half" else 1,
            codec=2 if self.codec == "half" else 4,
        )

    @property
    def needs_fp8(self) -> bool:
        """Whether only a card with fp8 can do it."""
        return "fp8" in (self.weights, self.kv)


@dataclass(frozen=True)
class Plan:
    """One card's figures; memory in bytes."""

    card: Card
    wish: Wish
    sizes: Sizes
    free_bytes: float  # beside weights and the driver's context
    slots: int
    columns: int
    floors: tuple[StepTime, ...]
    expected: tuple[StepTime, ...]
    most: Streams  # by the floor
    likely: Streams

    @property
    def slots_bytes(self) -> int:
        """What all slots keep of their positions."""
        return self.slots * (self.columns + 1) * self.sizes.demand.position

    @property
    def stream_bytes(self) -> int:
        """What else slots keep, and what making sound works with."""
        demand = self.sizes.demand
        return self.slots * (demand.slot(-1)) if self.slots else 0

    @property
    def machines(self) -> list[str]:
        """Types of instances, with the number of GPUs where that is not one."""
        return [
            f"{m.instance_type} (x{m.num_gpus})" if m.num_gpus > 1 else m.instance_type
            for m in machines_with(self.card)
        ]

    def data(self) -> dict[str, Any]:
        """Everything for a machine."""
        demand, card = self.sizes.demand, self.card
        return {
            "gpu": card.name,
            "memory_bytes": card.memory_bytes,
            "bandwidth_gb_s": card.bandwidth_gb_s,
            "tflops": card.half_tflops,
            "capability": ".".join(map(str, card.capability)),
            "precision": card.half,
            "has_fp8": card.has_fp8,
            "model_bytes": round(self.sizes.weight_bytes("memory")),
            "codec_bytes": round(self.sizes.weight_bytes("compute")),
            "fixed_bytes": demand.fixed,
            "column_bytes": demand.position,
            "stream_row_bytes": demand.stream_row,
            "free_bytes": round(self.free_bytes),
            "slots": self.slots,
            "columns": self.columns,
            "slots_bytes": self.slots_bytes,
            "stream_bytes": self.stream_bytes,
            "floor": [asdict(time) | {"total_ms": time.total_ms} for time in self.floors],
            "expected": [asdict(time) | {"total_ms": time.total_ms} for time in self.expected],
            "most": asdict(self.most) | {"streams": self.most.count},
            "likely": asdict(self.likely) | {"streams": self.likely.count},
            "machines": [machine.instance_type for machine in machines_with(card)],
        }


def make_plans(measure: Callable[[Formats, int], Sizes], cards: list[Card], wish: Wish) -> list[Plan]:
    """Plan for each card; `measure` gives the sizes of the checkpoint, by formats and by bytes of the prefix cache.

    Raises `ParameterError` for columns or formats that cannot be.
    """
    sizes = measure(wish.formats, round(1e6 * _default("prefix_cache_mb")))
    for name, value in (("columns", wish.columns), ("context", wish.context)):
        if value is not None and not 1 <= value <= sizes.max_positions:
            raise ParameterError(
                name, f"{value} is not a whole number in [1, {sizes.max_positions}], the model's columns"
            )
    for card in cards:
        if wish.needs_fp8 and not card.has_fp8:
            raise ParameterError("gpu", f"{card.title} (capability {card.capability}) has no fp8; use int8 or half")
    return [_plan(sizes, card, wish) for card in cards]


def _plan(sizes: Sizes, card: Card, wish: Wish) -> Plan:
    free = card.memory_bytes - CONTEXT_BYTES - sizes.weight_bytes("memory") - sizes.weight_bytes("compute")
    if wish.columns is not None:
        slots, columns = min(wish.max_slots, count_slots(free, sizes.demand, wish.columns)), wish.columns
    else:
        needed = sizes.needed_positions(_default("max_reference_s"), round(_default("chunk_length")))
        slots, columns = fit_slots(
            free, sizes.demand, wanted=wish.max_slots, positions=sizes.max_positions, needed=needed, span=SPAN
        )
    floors = Floors(sizes, card, wish.context)
    return Plan(
        card=card,
        wish=wish,
        sizes=sizes,
        free_bytes=free,
        slots=slots,
        columns=columns,
        floors=tuple(floors.floor(rows) for rows in (*ROWS, *_more(slots))),
        expected=tuple(floors.expected(rows, wish.efficiency) for rows in (*ROWS, *_more(slots))),
        most=floors.streams(slots),
        likely=floors.streams(slots, wish.efficiency),
    )


def _more(slots: int) -> tuple[int, ...]:
    """The full number of slots, last."""
    return (max(1, slots),)


def _default(name: str) -> float:
    return float(EngineConfig.model_fields[name].default)
