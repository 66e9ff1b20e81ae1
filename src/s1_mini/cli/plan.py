"""`s1-mini plan`: the performance of a checkpoint on a GPU, computed from its sizes and the GPU's data sheet."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from s1_mini.capacity.sizes import MAX_SLOTS
from s1_mini.cli.verb import engine_config, named_checkpoint, print_table

if TYPE_CHECKING:
    from rich.table import Table

    from s1_mini.capacity.plan import CapacityPlan, Streams

WIDTH = 160  # width of the table with all GPUs if stdout is not a terminal


def plan(
    gpu: Annotated[str | None, typer.Option(help="t4, a10g, l4, l40s, a100, h100 or h200. [all]")] = None,
    machine: Annotated[
        str | None, typer.Option(help="Plan for all GPUs of an instance type instead, such as ml.g6.12xlarge.")
    ] = None,
    replicas: Annotated[int | None, typer.Option(min=1, help="Replicas on the machine. [one per GPU]")] = None,
    placement: Annotated[
        str | None, typer.Option(help="Stages on other GPUs, such as codec=cuda:1 (S1_MINI_PLACEMENT).")
    ] = None,
    checkpoint: Annotated[
        Path | None, typer.Option(help="Directory, or name on the hub; only its configs are read. [S1-mini's sizes]")
    ] = None,
    context: Annotated[int, typer.Option(help="Positions in use per slot: voice, text and frames.")] = 300,
    columns: Annotated[int | None, typer.Option(help="Positions that a slot can hold. [the engine's choice]")] = None,
    max_slots: Annotated[int, typer.Option(min=1, max=MAX_SLOTS, help="Maximum number of slots.")] = 256,
    weights: Annotated[
        Literal["half", "int8", "fp8"],
        typer.Option(help="Format of large weight matrices. half corresponds to S1_MINI_WEIGHTS_DTYPE=full."),
    ] = "half",
    kv: Annotated[
        Literal["half", "fp8"],
        typer.Option(help="Format of the KV cache. half corresponds to S1_MINI_KV_DTYPE=full."),
    ] = "half",
    codec: Annotated[Literal["half", "float32"], typer.Option(help="Format of the codec.")] = "half",
    fixed_ms: Annotated[float | None, typer.Option(min=0.0, help="Fixed time per frame in ms. [measured]")] = None,
    memory_share: Annotated[
        float | None, typer.Option(min=0.01, max=1.0, help="Achieved share of the memory bandwidth. [measured]")
    ] = None,
    compute_share: Annotated[
        float | None,
        typer.Option(min=0.01, max=1.0, help="Share of the peak arithmetic rate that the codec achieves. [measured]"),
    ] = None,
    engine_share: Annotated[
        float | None,
        typer.Option(
            min=0.01, max=1.0, help="Share of the computed number of streams that the engine sustains. [measured]"
        ),
    ] = None,
    price: Annotated[bool, typer.Option("--price", help="Only print the prices of instance types.")] = False,
    only_json: Annotated[bool, typer.Option("--json", help="Print only the line of JSON.")] = False,
) -> None:
    """Compute the memory, slots, real-time streams and minimum times of a checkpoint on a GPU.

    The output is a table, an explanation and one line of JSON. With --price, it is a table of prices per hour and
    month.

    Example: s1-mini plan --gpu l4, or s1-mini plan --machine ml.g6.12xlarge
    """
    import json
    from dataclasses import asdict, replace
    from functools import partial

    from rich.console import Console

    from s1_mini.capacity.cards import CARDS, find_card, find_machine
    from s1_mini.capacity.plan import Efficiency, PlanOptions, make_plans, plan_machine
    from s1_mini.exceptions import ParameterError
    from s1_mini.families.registry import get_family

    if machine and gpu:
        raise ParameterError("machine", "cannot be combined with --gpu")
    if price:
        _print_prices(find_machine(machine).instance_type if machine else None, find_card(gpu).name if gpu else None)
        return
    if replicas and not machine:
        raise ParameterError("replicas", "requires --machine")
    shares = {
        "fixed_ms": fixed_ms,
        "memory_share": memory_share,
        "compute_share": compute_share,
        "engine_share": engine_share,
    }
    given = {name: value for name, value in shares.items() if value is not None}
    efficiency = replace(Efficiency(), **given, source="as given") if given else Efficiency()
    placed = engine_config(placement=placement).placement if placement else {}
    named = named_checkpoint(checkpoint, with_weights=False) if checkpoint else None
    family = named.family if named else get_family()
    wish = PlanOptions(columns, context, weights, kv, codec, max_slots, efficiency, placed, family.in_float16)
    cards = [find_card(gpu)] if gpu else [card for card in CARDS.values() if card.has_fp8 or not wish.needs_fp8]
    measure = partial(family.sizes, named.directory if named else None)
    if machine:
        whole = find_machine(machine)
        plans = [plan_machine(measure, whole, find_card(whole.card), wish, replicas)]
    else:
        plans = make_plans(measure, cards, wish)

    facts = {"checkpoint": str(checkpoint) if checkpoint else family.title, **asdict(wish)}
    if not only_json:
        console = Console()
        console.width = max(console.width, WIDTH if len(plans) > 2 else 0)
        typer.echo(
            f"{facts['checkpoint']}, {context} positions in use per slot, weights {weights}, keys and values {kv}, "
            f"codec {codec}"
        )
        console.print(_table(plans))
        typer.echo(
            "floor: the lower bound of the time per frame, from the arithmetic rate in the GPU's data sheet and the "
            f"bandwidth of a memory copy. Expected time per frame: {efficiency.fixed_ms:g} ms + floor of the model "
            f"/ {efficiency.memory_share:g} + floor of the codec / {efficiency.compute_share:g}. Expected "
            f"streams: {efficiency.engine_share:g} × the number that this time allows ({efficiency.source})"
        )
    typer.echo(json.dumps({**facts, "plans": [plan.data() for plan in plans]}))


def _print_prices(instance_type: str | None, card: str | None) -> None:
    from s1_mini.capacity.cards import CARDS, MACHINES
    from s1_mini.capacity.prices import HOURLY_USD, HOURS_PER_MONTH, PRICE_REGION, PRICES_OF

    gpus = {each.instance_type: each for each in MACHINES}
    rows = []
    for name in [*(name for name in HOURLY_USD if name not in gpus), *gpus]:
        if (instance_type and name != instance_type) or (card and (name not in gpus or gpus[name].card != card)):
            continue
        kind = f"{gpus[name].num_gpus} x {CARDS[gpus[name].card].title}" if name in gpus else "none"
        hour = HOURLY_USD.get(name)
        cost = ("unknown", "unknown") if hour is None else (f"{hour:,.2f}", f"{hour * HOURS_PER_MONTH:,.0f}")
        rows.append((name, kind, *cost))
    print_table(rows, "instance type", "GPUs", "USD per hour", "USD per month")
    typer.echo(
        f"One on-demand instance in {PRICE_REGION}, {HOURS_PER_MONTH} hours a month, without S3 and traffic. Collected "
        f"in {PRICES_OF} from copies of AWS's price list; current prices: https://aws.amazon.com/sagemaker/ai/pricing"
    )


def _table(plans: list[CapacityPlan]) -> Table:
    """Return a table with one column per GPU and one row per figure."""
    from rich.table import Table

    table = Table()
    table.add_column(no_wrap=True)
    for plan in plans:
        table.add_column(plan.card.title)
    for name, values in _lines(plans):
        table.add_row(name, *values)
    return table


def _lines(plans: list[CapacityPlan]) -> list[tuple[str, list[str]]]:
    first, data = plans[0], [plan.data() for plan in plans]

    def each(figure: object) -> list[str]:
        return [str(figure)] * len(plans)

    lines = [
        ("memory, GB", [_gb(plan.card.memory_bytes) for plan in plans]),
        ("bandwidth, GB/s; TFLOP/s", [f"{p.card.bandwidth_gb_s:,.0f}; {p.card.half_tflops:g}" for p in plans]),
        ("number format", [one["precision"] + (", fp8" if one["has_fp8"] else "") for one in data]),
        ("weights: model + codec, GB", [f"{_gb(one['model_bytes'])} + {_gb(one['codec_bytes'])}" for one in data]),
        ("graphs, copies, caches, encoding, GB", [_gb(one["fixed_bytes"]) for one in data]),
        ("KV cache, kB per position", [f"{one['column_bytes'] / 1e3:.1f}" for one in data]),
        ("slots x positions", [f"{plan.slots} x {plan.columns}" if plan.slots else "none" for plan in plans]),
        ("... keys and values, GB", [_gb(one["slots_bytes"]) for one in data]),
        ("... codec's rows and work, GB", [_gb(one["stream_bytes"]) for one in data]),
    ]
    for index, time in enumerate(first.floors):
        name = f"ms per frame at {time.rows} rows" if index + 1 < len(first.floors) else "... at all slots"
        fits = [index == len(first.floors) - 1 or plan.floors[index].rows <= plan.slots for plan in plans]
        if not any(fits):
            continue
        pairs = [(plan.floors[index], plan.expected[index]) for plan in plans]
        with_codec = [f"{_ms(floor.total_ms)}; {_ms(expected.total_ms)}" for floor, expected in pairs]
        lines.append((f"{name}: floor", _where(fits, [_ms(floor.model_ms) for floor, _ in pairs])))
        lines.append(("... with the codec: floor; expected", _where(fits, with_codec)))
    if len(first.rooms) > 1:
        free = [f"{', '.join(first.stages[room.name])}: {_gb(room.free_bytes)} free" for room in first.rooms]
        lines.append(("GPUs of an engine, GB", ["\n".join(free)] * len(plans)))
    lines += [
        ("streams, at most", [_streams(plan.most) for plan in plans]),
        ("streams, expected", [_streams(plan.likely) for plan in plans]),
    ]
    if first.machine:
        whole = first.whole
        lines += [
            ("machine", [f"{whole['instance_type']} (x{whole['gpus']})"]),
            ("replicas", each(whole["replicas"])),
            ("... slots in total", each(whole["slots"])),
            ("... streams in total, expected", each(whole["likely_streams"])),
        ]
    else:
        lines.append(("machines", ["\n".join(plan.machines) for plan in plans]))
    return lines


def _where(fits: list[bool], figures: list[str]) -> list[str]:
    """Return the figures; those of GPUs with too few slots for the number of rows are empty."""
    return [figure if fit else "" for fit, figure in zip(fits, figures, strict=True)]


def _streams(streams: Streams) -> str:
    return f"{streams.count}" if streams.rows else "none"


def _gb(num_bytes: float) -> str:
    return f"{num_bytes / 1e9:.2f}"


def _ms(value: float) -> str:
    return f"{value:.2f}" if value < 10 else f"{value:.1f}"
