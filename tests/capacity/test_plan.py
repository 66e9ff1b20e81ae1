"""Capacity plans follow from model sizes, agree with hand-computed values, and print as a table and a line of JSON."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from functools import cache, partial
from pathlib import Path
from typing import Any, Literal

import pytest

from s1_mini.aws.deployment import has_own_disk, is_gpu
from s1_mini.capacity.cards import CARDS, MACHINES, card_in, find_card, find_machine
from s1_mini.capacity.plan import COPY_SHARE, REPLICA_SHARE, Efficiency, Floors, PlanOptions, make_plans, plan_machine
from s1_mini.capacity.prices import HOURLY_USD, PRICES_OF
from s1_mini.capacity.sizes import (
    AUTO_SLOTS,
    CONTEXT_BYTES,
    GIB,
    PREFIX_CACHE_BYTES,
    Cost,
    DeviceMemory,
    Formats,
    MemoryRequirement,
    Sizes,
    StageSizes,
    count_slots,
    fit_slots,
)
from s1_mini.cli.app import app
from s1_mini.config import EngineConfig
from s1_mini.core.turns import CLIENT_SHARE
from s1_mini.exceptions import ParameterError
from s1_mini.families.registry import get_family
from s1_mini.runtime.loader import load
from s1_mini.server.settings import ServerSettings
from s1_mini.weights.fit import count

Run = Callable[..., tuple[str, dict[str, Any]]]

S1_MINI = cache(partial(get_family().sizes, None))  # by format
DEMAND = MemoryRequirement(position=100, stream_row=1000, frame=10)


@pytest.fixture(scope="module")
def full() -> Sizes:
    return S1_MINI(Formats())


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Run:
    def plan(*options: object) -> tuple[str, dict[str, Any]]:
        app(["plan", *map(str, options)], standalone_mode=False)
        *lines, line = capsys.readouterr().out.splitlines()
        return "\n".join(lines), json.loads(line)

    return plan


def test_the_sizes_of_s1_mini_are_those_of_the_original(full: Sizes) -> None:
    step, sound = (stage.step for stage in full.stages.values())
    assert step(1, 301).num_bytes - step(1, 300).num_bytes == 114_688
    assert sound(1, 0).operations / full.frame_s == pytest.approx(145.8e9, rel=1e-3)
    # 860.2 M parameters less the unsampled head rows: 155,776 - 4,097 and 4,096 - 1,024, of 1,024
    assert full.weight_bytes("memory") == pytest.approx(2 * (860.2e6 - (151_679 + 3_072) * 1024), rel=1e-3)


@pytest.mark.parametrize(("rows", "counted_ms"), [(1, 0.467), (64, 0.977), (128, 1.496)])
def test_the_floor_of_an_h200_matches_a_calculation_by_hand(full: Sizes, rows: int, counted_ms: float) -> None:
    floor = Floors(full, find_card("h200"), 300).time(rows).model_ms
    # The hand count has a tenth pass of the depth transformer, and nine of its head with 4,096 rows, not 1,024.
    more = 2 * (4 * 12.58e6 + 9 * 3072 * 1024) / 4.29e9

    assert floor + more == pytest.approx(counted_ms, rel=0.02)


def test_the_estimate_for_an_h200_matches_the_measurement(full: Sizes) -> None:
    floors = Floors(full, find_card("h200"), 350)

    expected = [floors.time(rows, Efficiency()).model_ms for rows in (1, 64, 128, 256)]

    assert expected == pytest.approx([1.19, 2.44, 3.47, 5.60], rel=0.05)
    assert floors.streams(256, Efficiency()).count == pytest.approx(640, rel=0.1)


def test_the_sizes_of_a_checkpoint_are_those_of_its_loaded_weights(tiny: Path) -> None:
    speaker = load(EngineConfig(checkpoint_path=tiny, device="cpu"))
    sizes = get_family().sizes(tiny, Formats(codec=4))
    step = sizes.stages["language_model"].step

    assert sizes.weight_bytes("memory") == speaker.loaded.model.num_bytes / 2  # float32 on a CPU
    assert sizes.weight_bytes("compute") == 4 * count(speaker.loaded.codec)
    assert step(1, 1).num_bytes - step(1, 0).num_bytes == speaker.loaded.model.position_bytes / 2


def fit(free: float, requested: int) -> tuple[int, int]:
    return fit_slots([DeviceMemory(free, DEMAND)], requested=requested, positions=8192, needed=2048)


def test_slots_fill_the_memory_and_fewer_positions_are_chosen_before_fewer_slots() -> None:
    free = 1.2 * GIB
    rich, poor = (count_slots([DeviceMemory(free, DEMAND)], columns) for columns in (8192, 2048))

    room = 0.98 * free - DEMAND.fixed
    assert poor * DEMAND.slot(2048) <= room < (poor + 1) * DEMAND.slot(2048)
    assert count_slots([DeviceMemory(GIB / 2, DEMAND)], 2048) == 0
    assert [fit(free, expected) for expected in (rich, rich + 1, 10 * poor)] == [
        (rich, 8192),
        (rich + 1, 2048),
        (poor, 2048),
    ]
    # One slot with as many columns as fit.
    assert fit((DEMAND.fixed + DEMAND.slot(200)) / 0.98 + 1, 4) == (1, 192)
    assert fit(0, 4) == (1, 0)


def test_a_chain_of_other_stages_is_planned_the_same_way() -> None:
    """Two autoregressive stages, one compute stage and one audio stage; slots of a fixed size."""

    def stage(weights: float, bound: Literal["memory", "compute"]) -> StageSizes:
        return StageSizes(weights, lambda rows, _: Cost(weights, 2 * rows * weights), bound)

    weights = (stage(4e8, "memory"), stage(2e8, "memory"), stage(2e8, "compute"), stage(3e7, "compute"))
    demand = MemoryRequirement(stream_row=1000, frame=10, fixed_slot=GIB // 4, prefix_cache=PREFIX_CACHE_BYTES)
    stages = dict(zip("abcd", weights, strict=True))
    demands = {"a": demand, **dict.fromkeys("bcd", MemoryRequirement())}
    sizes = Sizes(stages, demands, frame_s=1 / 75, max_positions=1024, needed_positions=lambda *_: 1024)
    card = find_card("l4")

    (plan,) = make_plans(lambda *_: sizes, [card], PlanOptions())

    free = card.memory_bytes - CONTEXT_BYTES - 8.3e8
    assert plan.free_bytes == pytest.approx(free)
    assert (plan.slots, plan.columns) == (int((0.98 * free - demand.fixed) // demand.slot(1024)), 1024)
    assert plan.floors[0].model_ms == pytest.approx(6e8 / (COPY_SHARE * card.bandwidth_gb_s * 1e6))
    assert plan.data()["codec_bytes"] == 230_000_000
    assert fit_slots([DeviceMemory(0, demand)], requested=4, positions=1024, needed=1024) == (1, 0)


def test_of_several_devices_the_fullest_decides() -> None:
    keeps, sounds, nothing = (
        MemoryRequirement(position=100),
        MemoryRequirement(stream_row=1_000_000),
        MemoryRequirement(copies=GIB),
    )
    roomy, tight = DeviceMemory(1.5 * GIB, keeps), DeviceMemory(GIB + 50e6, sounds)
    slots = count_slots([tight], 2048)

    assert 0 < slots < count_slots([roomy], 2048)
    assert count_slots([roomy, tight, DeviceMemory(3 * GIB, nothing)], 2048) == slots
    assert fit_slots([roomy, DeviceMemory(GIB, sounds)], requested=4, positions=2048, needed=64) == (1, 0)
    assert count_slots([roomy, DeviceMemory(GIB, nothing)], 2048) == 0


def test_stages_on_other_devices_free_memory_and_time_for_the_rest(full: Sizes) -> None:
    l4 = find_card("l4")
    (together,), (apart,) = (
        make_plans(S1_MINI, [l4], PlanOptions(placement=placement)) for placement in ({}, {"codec": "cuda:1"})
    )

    assert together.slots < apart.slots
    assert together.likely.count < apart.likely.count < 2 * REPLICA_SHARE * together.likely.count
    assert {room.name: apart.stages[room.name] for room in apart.rooms} == {
        "cuda:0": ("language_model",),
        "cuda:1": ("codec",),
    }
    assert full.demand == sum(full.demands.values(), MemoryRequirement())


def test_a_machine_uses_all_its_gpus() -> None:
    machine = find_machine("G6.12xlarge")
    plan = plan_machine(S1_MINI, machine, find_card(machine.card), PlanOptions(), None)

    assert plan.whole["replicas"] == 4
    assert plan.whole["slots"] == 4 * plan.slots
    assert 3 * plan.likely.count < plan.whole["likely_streams"] < 4 * plan.likely.count


def test_more_memory_bandwidth_and_smaller_numbers_never_make_a_plan_worse() -> None:
    a100, h100, h200 = (find_card(name) for name in ("a100", "h100", "h200"))
    plans = make_plans(S1_MINI, [a100, h100, h200], PlanOptions())
    (small,) = make_plans(S1_MINI, [h200], PlanOptions(weights="fp8", kv="fp8"))

    assert [plan.likely.count for plan in plans] == sorted(plan.likely.count for plan in plans)
    assert all(plan.likely.count < plan.most.count for plan in plans)
    assert small.floors[-1].total_ms < plans[-1].floors[-1].total_ms
    assert small.sizes.weight_bytes("memory") < plans[-1].sizes.weight_bytes("memory")


def test_all_gpus_are_listed_where_none_is_named(run: Run) -> None:
    table, data = run()

    assert [plan["gpu"] for plan in data["plans"]] == list(CARDS)
    assert all(card.title in table for card in CARDS.values())
    assert all(0 < plan["slots"] <= 256 for plan in data["plans"])
    assert data["plans"][0]["precision"] == "float16"


def test_a_model_that_overflows_in_float16_is_planned_in_float32_where_bfloat16_is_missing() -> None:
    t4, l4 = make_plans(
        partial(get_family("qwen3").sizes, None),
        [find_card("t4"), find_card("l4")],
        PlanOptions(in_float16=get_family("qwen3").in_float16),
    )

    assert [plan.data()["precision"] for plan in (t4, l4)] == ["float32", "bfloat16"]
    assert t4.sizes.weight_bytes("memory") == 2 * l4.sizes.weight_bytes("memory")
    assert t4.sizes.weight_bytes("compute") == l4.sizes.weight_bytes("compute")
    step = t4.sizes.stages["language_model"].step
    arithmetic_ms = step(128, 300).operations / (1e9 * t4.card.single_tflops)
    assert t4.floors[3].model_ms == pytest.approx(arithmetic_ms)


def test_one_gpu_and_a_local_checkpoint_can_be_planned(run: Run, tiny: Path) -> None:
    table, data = run("--gpu", "L4", "--checkpoint", tiny, "--columns", 512, "--context", 200)

    (plan,) = data["plans"]
    assert "ml.g6.xlarge" in table
    assert (plan["slots"], plan["columns"]) == (256, 512)
    assert plan["slots_bytes"] == pytest.approx(256 * 513 * plan["column_bytes"], rel=0.001)
    assert [time["rows"] for time in plan["floor"]] == [1, 16, 64, 128, 256]


def test_the_table_has_no_row_for_more_rows_than_slots(run: Run) -> None:
    table, data = run("--gpu", "t4")

    assert (data["plans"][0]["slots"], data["plans"][0]["column_bytes"]) == (33, 114_728)
    assert [rows in table for rows in ("at 16 rows", "at 64 rows", "at all slots")] == [True, False, True]


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        (["--gpu", "rtx"], "use one of t4, a10g, l4, l40s, a100, h100, h200"),
        (["--gpu", "t4", "--kv", "fp8"], "has no fp8"),
        (["--context", 0], "context: 0"),
        (["--columns", 9000], r"columns: 9000 is not a whole number in \[1, 8192\]"),
        (["--machine", "ml.g6.3xlarge"], "use one of g4dn.xlarge"),
        (["--machine", "ml.g6.12xlarge", "--gpu", "l4"], "cannot be combined with --gpu"),
        (["--replicas", 2], "requires --machine"),
        (
            ["--machine", "ml.g6.12xlarge", "--replicas", 8],
            "8: each replica needs its own GPU, but ml.g6.12xlarge has 4 GPUs; use --replicas 4, or use ml.g6.48xlarge",
        ),
        (["--machine", "ml.p5.48xlarge", "--replicas", 9], "has 8 GPUs; use --replicas 8$"),
        (["--machine", "ml.g6.12xlarge", "--placement", "codec=cuda:5"], "needs 6 GPUs.* or use ml.g6.48xlarge"),
        (
            ["--machine", "ml.g6.12xlarge", "--placement", "codec=cuda:1", "--replicas", 2],
            "each replica sees one GPU; omit --replicas or --placement",
        ),
        (["--placement", "sound=cuda:1"], "unknown stage sound; available: language_model, codec"),
        (["--placement", "codec=cpu"], "a plan supports only GPUs"),
    ],
)
def test_an_impossible_plan_is_refused_by_name(run: Run, options: list[object], complaint: str) -> None:
    with pytest.raises(ParameterError, match=complaint):
        run(*options)


def test_the_machines_are_those_that_deployment_knows() -> None:
    assert {machine.card for machine in MACHINES} == set(CARDS)
    assert all(is_gpu(machine.instance_type) and has_own_disk(machine.instance_type) for machine in MACHINES)


def test_the_table_for_choosing_a_machine_is_the_plan() -> None:
    text = (Path(__file__).parents[2] / "docs/machines.md").read_text(encoding="utf-8")
    for plan in make_plans(S1_MINI, list(CARDS.values()), PlanOptions()):
        (line,) = [line for line in text.splitlines() if line.startswith("| `ml.") and f"({plan.card.title})" in line]
        cells = [cell.strip().removesuffix(" a GPU").replace(",", "") for cell in line.split("|")[4:7]]

        assert cells == [str(plan.slots), str(plan.most.count), str(plan.likely.count)]
        assert any(machine.startswith(line.split("`")[1]) for machine in plan.machines)


@pytest.mark.parametrize(
    ("said", "card"),
    [("NVIDIA H200", "h200"), ("Tesla T4", "t4"), ("NVIDIA A100-SXM4-40GB", "a100"), ("NVIDIA L40S", "l40s")],
)
def test_a_gpu_is_recognised_by_its_driver_name(said: str, card: str) -> None:
    found = card_in(said)

    assert found is not None
    assert found.name == card
    assert card_in("NVIDIA GeForce RTX 4090") is None


def test_eight_bit_weights_are_counted_as_such(tiny: Path) -> None:
    """The saving per step equals the saving in model size, except for scales and norms."""
    speakers = [
        load(EngineConfig(checkpoint_path=tiny, device="cpu", weights_dtype=weights, kv_dtype=kv))
        for weights, kv in (("full", "full"), ("int8", "fp8"))
    ]
    steps = [speaker.sizes().stages["language_model"].step for speaker in speakers]
    wide, small = (speaker.loaded.model for speaker in speakers)

    columns = [step(1, 1).num_bytes - step(1, 0).num_bytes for step in steps]
    assert columns == [wide.position_bytes, small.position_bytes] == [wide.position_bytes, wide.position_bytes / 4]
    saved = steps[0](1, 0).num_bytes - steps[1](1, 0).num_bytes
    assert saved == pytest.approx(wide.num_bytes - small.num_bytes, rel=0.05)


def test_the_price_table_names_the_costs_their_date_and_what_is_unknown(capsys: pytest.CaptureFixture[str]) -> None:
    def shown(*options: str) -> str:
        app(["plan", "--price", *options], standalone_mode=False)
        return capsys.readouterr().out

    row = next(line for line in shown("--gpu", "l4").splitlines() if "ml.g6.xlarge" in line)
    assert [cell.strip() for cell in row.strip("│").split("│")] == ["ml.g6.xlarge", "1 x L4", "1.13", "823"]
    assert "unknown" in shown("--machine", "ml.p5en.48xlarge")
    every = shown()
    assert PRICES_OF in every
    assert all(machine.instance_type in every for machine in MACHINES)
    assert set(HOURLY_USD) <= set(re.findall(r"ml\.\S+", every))


def test_an_h200_accepts_768_streams_of_one_client_by_default() -> None:
    (plan,) = make_plans(partial(get_family().sizes, None), [find_card("h200")], PlanOptions())
    engine, server = EngineConfig(), ServerSettings()

    assert plan.slots == AUTO_SLOTS
    in_progress = min(server.max_requests, server.max_connections, plan.slots + engine.max_queue_size)
    assert int(CLIENT_SHARE * in_progress) >= 768
    assert plan.slots + int(CLIENT_SHARE * engine.max_queue_size) >= 768
