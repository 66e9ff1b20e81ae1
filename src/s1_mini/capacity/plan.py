"""A checkpoint on a GPU: memory, slots, minimum and expected time of a frame, real-time streams and instance types.

A step reads every weight once, and the used keys and values of every row. The lower bound ("floor") of a stage's time
is the larger of two times: its bytes divided by the bandwidth, and its operations divided by the computing rate.
Usually, the bytes decide for stages that generate step by step, and the operations for the codec. A GPU runs its stages
in turn. Several GPUs work at the same time, and the slowest one counts.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import cache
from typing import Any, Literal

from s1_mini.capacity.cards import CARDS, MACHINES, Gpu, InstanceType, gpu_precision, machines_with
from s1_mini.capacity.sizes import (
    AUTO_SLOTS,
    CONTEXT_BYTES,
    PREFIX_CACHE_BYTES,
    SPAN,
    DeviceMemory,
    Formats,
    Sizes,
    StageSizes,
    count_slots,
    fit_slots,
    sum_demands,
)
from s1_mini.config import EngineConfig
from s1_mini.exceptions import ParameterError
from s1_mini.text.split import PIECE_BYTES

COPY_SHARE = 4.29 / 4.80  # measured share of the data sheet's bandwidth in a copy (H200, 2026-11)
ROWS = (1, 16, 64, 128)
# Throughput of each of several replicas relative to a single server: two H200s had 1.75 times the throughput of one
# (docs/internals/scale_measured.md).
REPLICA_SHARE = 0.875

WeightFormat = Literal["half", "int8", "fp8"]
KVFormat = Literal["half", "fp8"]
CodecFormat = Literal["half", "float32"]


@dataclass(frozen=True)
class Efficiency:
    """Efficiency of the engine: model time = `fixed_ms` + floor of the memory-bound stages / `memory_share`.

    The codec's time is its floor / `compute_share`; both times add up to the time of a frame. The engine
    sustains `engine_share` of the streams that this time allows; prompts, bookkeeping and bursts take the rest.
    The defaults apply to every card. They are fitted to an early H200 run (2026-11) with these figures: 1.19, 2.44,
    3.47 and 5.60 ms of model time at 1, 64, 128 and 256 rows of 350 positions; 1,900 seconds of audio per second by
    the codec alone; 640 streams. docs/internals/performance.md has later figures.
    """

    fixed_ms: float = 0.4
    memory_share: float = 0.525
    compute_share: float = 0.28
    engine_share: float = 0.65
    source: str = "docs/internals/performance.md, H200, 2026-11"


IDEAL = Efficiency(fixed_ms=0, memory_share=1, compute_share=1, engine_share=1, source="the floor")


@dataclass(frozen=True)
class StepTime:
    """Milliseconds per frame with `rows` rows: of memory-bound stages (model) and of compute-bound ones (codec)."""

    rows: int
    model_ms: float
    codec_ms: float

    @property
    def total_ms(self) -> float:
        return self.model_ms + self.codec_ms


@dataclass(frozen=True)
class Streams:
    """Throughput of a GPU in seconds of audio per second, and its number of rows."""

    rows: int
    audio_per_s: float
    step_ms: float

    @property
    def count(self) -> int:
        """Number of real-time streams.

        It may exceed the number of slots, because a slot generates audio faster than it is played and then serves the
        next stream.
        """
        return int(self.audio_per_s)


class Floors:
    """Times of one checkpoint on one card, with `context` positions in use in each row.

    With several such cards, `devices` has the names of the stages on each.
    """

    def __init__(self, sizes: Sizes, card: Gpu, context: int, devices: Sequence[Sequence[str]] = ()) -> None:
        self._sizes, self._card, self._context = sizes, card, context
        self._devices = [[sizes.stages[name] for name in names] for names in devices or (tuple(sizes.stages),)]
        self._bytes_per_ms = COPY_SHARE * card.bandwidth_gb_s * 1e6

    def time(self, rows: int, efficiency: Efficiency = IDEAL) -> StepTime:
        """Return the time of a frame on the slowest device."""
        times = []
        for stages in self._devices:
            floor = {"memory": 0.0, "compute": 0.0}
            for stage in stages:
                floor[stage.bound] += self._least_ms(stage, rows)
            model_ms = efficiency.fixed_ms + floor["memory"] / efficiency.memory_share
            times.append(StepTime(rows, model_ms, floor["compute"] / efficiency.compute_share))
        return max(times, key=lambda time: time.total_ms)

    def _least_ms(self, stage: StageSizes, rows: int) -> float:
        cost = stage.step(rows, self._context)
        per_ms = (self._card.single_tflops if stage.is_single else self._card.half_tflops) * 1e9
        return max(cost.num_bytes / self._bytes_per_ms, cost.operations / per_ms)

    def streams(self, slots: int, efficiency: Efficiency = IDEAL) -> Streams:
        """Return the throughput with the most rows, up to `slots`, at which a frame takes less time than its audio."""
        frame_ms = 1000 * self._sizes.frame_s
        times = {rows: self.time(rows, efficiency).total_ms for rows in range(1, max(1, slots) + 1)}
        rows = max((rows for rows in range(1, slots + 1) if times[rows] < frame_ms), default=0)
        if not rows:
            return Streams(0, 0.0, times[1])
        return Streams(rows, efficiency.engine_share * rows * frame_ms / times[rows], times[rows])


@dataclass(frozen=True)
class PlanOptions:
    """Options of a plan.

    `columns` is the number of positions of a slot (None: the engine's choice), `context` the number of those in use.
    `placement` maps stages that are not on the first GPU to their devices, in the format of the setting `placement`.
    `in_float16`: whether the model can compute in float16 (`Family.in_float16`).
    """

    columns: int | None = None
    context: int = 300
    weights: WeightFormat = "half"  # format of the large weight matrices
    kv: KVFormat = "half"
    codec: CodecFormat = "half"
    max_slots: int = AUTO_SLOTS
    efficiency: Efficiency = field(default_factory=Efficiency)
    placement: Mapping[str, str] = field(default_factory=dict)
    in_float16: bool = True

    @property
    def num_gpus(self) -> int:
        return 1 + max((self.gpu_of(stage) for stage in self.placement), default=0)

    def gpu_of(self, stage: str) -> int:
        """Return the number of the GPU of a stage. Raises `ParameterError` for another device."""
        device = self.placement.get(stage, "auto")
        if device != "auto" and not device.startswith("cuda"):
            raise ParameterError("placement", f"{stage}={device}: a plan supports only GPUs: cuda:0, cuda:1 and so on")
        return int(device.partition(":")[2] or 0)

    def precision(self, card: Gpu) -> str:
        """Return the number format that the engine chooses on a card."""
        return gpu_precision(has_bfloat16=card.has_bfloat16, in_float16=self.in_float16).value

    def formats(self, card: Gpu) -> Formats:
        item = 4 if self.precision(card) == "float32" else 2
        return Formats(
            weights=item,
            large=item if self.weights == "half" else 1,
            kv=item if self.kv == "half" else 1,
            codec=2 if self.codec == "half" else 4,
            is_fp8=self.weights == "fp8",
        )

    @property
    def needs_fp8(self) -> bool:
        """Whether the plan needs a GPU with fp8."""
        return "fp8" in (self.weights, self.kv)


@dataclass(frozen=True)
class CapacityPlan:
    """The figures of one engine on one card, or on several of the same kind; memory in bytes."""

    card: Gpu
    wish: PlanOptions
    sizes: Sizes
    stages: Mapping[str, tuple[str, ...]]  # names of the stages, by GPU
    rooms: tuple[DeviceMemory, ...]  # memory of each GPU that weights and the driver's context leave free
    slots: int
    columns: int
    floors: tuple[StepTime, ...]  # at `ROWS`, then at all slots
    expected: tuple[StepTime, ...]
    most: Streams  # computed from the lower bound of the frame time
    likely: Streams
    machine: InstanceType | None = None
    replicas: int = 1  # on the machine

    @property
    def free_bytes(self) -> float:
        """Bytes that weights and the driver's context leave free."""
        return sum(room.free_bytes for room in self.rooms)

    @property
    def whole(self) -> dict[str, Any]:
        """Figures of all replicas of the machine together."""
        share = 1.0 if self.replicas == 1 else REPLICA_SHARE
        return {
            "instance_type": self.machine.instance_type if self.machine else None,
            "gpus": self.machine.num_gpus if self.machine else self.wish.num_gpus,
            "replicas": self.replicas,
            "slots": self.replicas * self.slots,
            "likely_streams": int(self.replicas * share * self.likely.audio_per_s),
        }

    @property
    def machines(self) -> list[str]:
        """Instance types, with the number of GPUs if they have several."""
        return [
            f"{m.instance_type} (x{m.num_gpus})" if m.num_gpus > 1 else m.instance_type
            for m in machines_with(self.card)
        ]

    def data(self) -> dict[str, Any]:
        demand, card = self.sizes.demand, self.card
        devices = [
            {"device": room.name, "stages": list(self.stages[room.name]), "free_bytes": round(room.free_bytes)}
            for room in self.rooms
        ]
        return {
            "gpu": card.name,
            "memory_bytes": card.memory_bytes,
            "bandwidth_gb_s": card.bandwidth_gb_s,
            "tflops": card.half_tflops,
            "capability": ".".join(map(str, card.capability)),
            "precision": self.wish.precision(card),
            "has_fp8": card.has_fp8,
            "model_bytes": round(self.sizes.weight_bytes("memory")),
            "codec_bytes": round(self.sizes.weight_bytes("compute")),
            "fixed_bytes": sum(room.demand.fixed for room in self.rooms),  # independent of the number of slots
            "column_bytes": demand.position,
            "stream_row_bytes": demand.stream_row,
            "free_bytes": round(self.free_bytes),
            "slots": self.slots,
            "columns": self.columns,
            "slots_bytes": self.slots * ((self.columns + 1) * demand.position + demand.fixed_slot),
            "stream_bytes": self.slots * (demand.slot(-1) - demand.fixed_slot),  # the codec's rows and working memory
            "floor": [asdict(time) | {"total_ms": time.total_ms} for time in self.floors],
            "expected": [asdict(time) | {"total_ms": time.total_ms} for time in self.expected],
            "most": asdict(self.most) | {"streams": self.most.count},
            "likely": asdict(self.likely) | {"streams": self.likely.count},
            "machines": [machine.instance_type for machine in machines_with(card)],
            "devices": devices,
            "machine": self.whole if self.machine else None,
        }


def make_plans(measure: Callable[[Formats], Sizes], cards: list[Gpu], wish: PlanOptions) -> list[CapacityPlan]:
    """Plan for each card; `measure` returns the checkpoint's sizes without a prefix cache, given formats.

    Raises `ParameterError` for invalid columns, contexts, formats or placements, and if the only card is too small.
    """
    measure = cache(measure)
    sizes = measure(wish.formats(cards[0]))
    for name, value in (("columns", wish.columns), ("context", wish.context)):
        if value is not None and not 1 <= value <= sizes.max_positions:
            raise ParameterError(
                name, f"{value} is not a whole number in [1, {sizes.max_positions}], the model's positions"
            )
    if unknown := sorted(set(wish.placement) - set(sizes.stages)):
        known = ", ".join(sizes.stages)
        raise ParameterError("placement", f"unknown stage {', '.join(unknown)}; available: {known}")
    for card in cards:
        if wish.needs_fp8 and not card.has_fp8:
            raise ParameterError("gpu", f"{card.title} (capability {card.capability}) has no fp8; use int8 or half")
    plans = [_plan(measure, card, wish) for card in cards]
    if len(plans) == 1 and not plans[0].slots:
        raise ParameterError("placement" if wish.placement else "gpu", _no_room(measure, plans[0]))
    return plans


def plan_machine(
    measure: Callable[[Formats], Sizes], machine: InstanceType, card: Gpu, wish: PlanOptions, replicas: int | None
) -> CapacityPlan:
    """Plan for a machine with `replicas` (default: one per GPU, or a single one if `wish` places stages).

    Raises the errors of `make_plans`, and `ParameterError` if the machine has too few GPUs or if several replicas are
    combined with a placement.
    """
    has = f"{machine.instance_type} has {machine.num_gpus} GPU{'s' if machine.num_gpus > 1 else ''}"
    if wish.num_gpus > machine.num_gpus:
        larger = _larger(machine, wish.num_gpus, "place stages only on its GPUs")
        raise ParameterError("placement", f"needs {wish.num_gpus} GPUs, but {has}, numbered from cuda:0; {larger}")
    if replicas is None:
        replicas = 1 if wish.placement else machine.num_gpus
    if replicas > 1 and wish.placement:
        message = f"{replicas} with a placement: each replica sees one GPU; omit --replicas or --placement"
        raise ParameterError("replicas", message)
    if replicas > machine.num_gpus:
        larger = _larger(machine, replicas, f"use --replicas {machine.num_gpus}")
        raise ParameterError("replicas", f"{replicas}: each replica needs its own GPU, but {has}; {larger}")
    (plan,) = make_plans(measure, [card], wish)
    return replace(plan, machine=machine, replicas=replicas)


def _larger(machine: InstanceType, num_gpus: int, way: str) -> str:
    """Return what to do about too few GPUs, for an error message."""
    larger = [each for each in MACHINES if each.card == machine.card and each.num_gpus >= num_gpus]
    least = min(larger, key=lambda each: each.num_gpus, default=None)
    return way if least is None else f"{way}, or use {least.instance_type}, which has {least.num_gpus}"


def _no_room(measure: Callable[[Formats], Sizes], plan: CapacityPlan) -> str:
    """Return an error message that names the stages that do not fit, and cards on which they do."""
    columns = plan.wish.columns or SPAN
    room = next(room for room in plan.rooms if room.count(columns) < 1)
    stages = plan.stages[room.name]
    weights = sum(plan.sizes.stages[name].weight_bytes for name in stages)
    needs = CONTEXT_BYTES + weights + room.demand.fixed + room.demand.slot(columns)
    message = (
        f"{', '.join(stages)} on {room.name} need {needs / 1e9:.1f} GB with one slot of {columns} positions, but "
        f"{plan.card.title} has {plan.card.memory_bytes / 1e9:.1f}; "
    )
    if plan.wish.placement and _plan(measure, plan.card, replace(plan.wish, placement={})).slots:
        return message + "they fit without the placement"
    fits = [
        card.name
        for card in CARDS.values()
        if (card.has_fp8 or not plan.wish.needs_fp8) and _plan(measure, card, plan.wish).slots
    ]
    return message + (f"they fit on {', '.join(fits)}" if fits else "narrower formats need less (--weights int8)")


def _plan(measure: Callable[[Formats], Sizes], card: Gpu, wish: PlanOptions) -> CapacityPlan:
    sizes = measure(wish.formats(card)).with_prefix_cache(PREFIX_CACHE_BYTES)
    gpus = {name: wish.gpu_of(name) for name in sizes.stages}
    stages = {f"cuda:{gpu}": tuple(name for name in gpus if gpus[name] == gpu) for gpu in sorted({*gpus.values()})}
    rooms = tuple(
        DeviceMemory(
            card.memory_bytes - CONTEXT_BYTES - sum(sizes.stages[name].weight_bytes for name in names),
            sum_demands(sizes.demands[name] for name in names),
            device,
        )
        for device, names in stages.items()
    )
    if wish.columns is not None:
        slots, columns = min(wish.max_slots, count_slots(rooms, wish.columns)), wish.columns
    else:
        needed = sizes.needed_positions(EngineConfig.model_fields["max_reference_s"].default, PIECE_BYTES)
        most = sizes.max_positions
        slots, columns = fit_slots(rooms, requested=wish.max_slots, positions=most, needed=needed)
        slots = slots if columns else 0
    floors = Floors(sizes, card, wish.context, list(stages.values()))
    rows = (*ROWS, max(1, slots))
    return CapacityPlan(
        card=card,
        wish=wish,
        sizes=sizes,
        stages=stages,
        rooms=rooms,
        slots=slots,
        columns=columns,
        floors=tuple(floors.time(each) for each in rows),
        expected=tuple(floors.time(each, wish.efficiency) for each in rows),
        most=floors.streams(slots),
        likely=floors.streams(slots, wish.efficiency),
    )
