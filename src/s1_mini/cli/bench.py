"""`s1-mini bench` and `profile`: throughput and latency of the engine, and the time of each part of an utterance."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from s1_mini.cli.verb import Checkpoint, DeviceName, FormatName, engine_config, named_checkpoint
from s1_mini.exceptions import EngineError, ParameterError
from s1_mini.types import ChunkProfile

if TYPE_CHECKING:
    from s1_mini.bench.clients import Load

DEFAULT_CONCURRENCY = 8
MAX_CLIENTS = 4096  # the maximum number of slots


def bench(
    checkpoint: Checkpoint = None,
    concurrency: Annotated[
        str | None, typer.Option(help="Concurrent requests, such as 8 or 1,4,8. [8 without --rate]")
    ] = None,
    rate: Annotated[
        str | None, typer.Option(help="Requests per second with random arrivals, such as 2 or 1,2.5.")
    ] = None,
    requests: Annotated[int, typer.Option(min=1, help="Requests per load.")] = 64,
    voice_state: Annotated[
        Literal["cold", "cached", "none"],
        typer.Option(help="cold: a new recording per request; cached: a cached voice; none: no voice."),
    ] = "cached",
    chunk_profile: Annotated[
        ChunkProfile, typer.Option("--profile", help="Size of the audio chunks (docs/http.md).")
    ] = "ttfa",
    baseline: Annotated[
        Literal["none", "sequential"], typer.Option(help="Also run the same requests one at a time.")
    ] = "none",
    slots: Annotated[
        int | None, typer.Option(min=1, max=MAX_CLIENTS, help="Slots of the engine. [the highest concurrency, or 8]")
    ] = None,
    max_new_tokens: Annotated[int, typer.Option(min=1, help="Maximum frames per request.")] = 200,
    device: DeviceName = "auto",
    seed: Annotated[int, typer.Option(help="The same seed gives the same sentences and arrivals.")] = 0,
    path: Annotated[Path | None, typer.Option("--output", "-o", metavar="FILE", help="File for the JSON.")] = None,
) -> None:
    """Measure the engine on this machine; print tables, then one line of JSON (docs/benchmark.md explains the figures).

    Example: s1-mini bench --concurrency 1,4,8 --baseline sequential
    """
    engine_config(device=device)  # report wrong settings before torch is loaded
    import json

    from s1_mini.audio.container import check_writable
    from s1_mini.bench.load_test import LoadTest, failure_lines, measure
    from s1_mini.bench.report import NONE

    if path is not None:
        check_writable(path)
    rates = _numbers("rate", rate or "")
    given = concurrency or ("" if rates else str(DEFAULT_CONCURRENCY))
    many = tuple(_whole("concurrency", number) for number in _numbers("concurrency", given))
    if baseline == "sequential" and not many:
        raise ParameterError("baseline", "requires --concurrency in addition to --rate")
    test = LoadTest(
        concurrencies=many,
        rates=rates,
        requests=requests,
        slots=slots or max(many, default=DEFAULT_CONCURRENCY),
        profile=chunk_profile,
        voice=voice_state,
        max_new_tokens=max_new_tokens,
        seed=seed,
        has_baseline=baseline == "sequential",
        checkpoint=named_checkpoint(checkpoint).directory,
        device=device,
    )
    result = measure(test)
    facts, loads = result.facts, result.all_loads
    typer.echo(
        f"{facts['machine']}, torch {facts['torch']}, commit {facts['commit']}, {facts['precision']}, "
        f"load average {facts['load_average']} before the run"
    )
    typer.echo(
        f"{requests} requests per load, at most {max_new_tokens} frames each, voice {voice_state}, "
        f"profile {chunk_profile}, {facts['slots']} slots, seed {seed}"
    )
    typer.echo(result.tables())
    for line in failure_lines(loads):
        typer.echo(line)
    for name, value in result.ratios.items():
        typer.echo(f"{name} {NONE if value is None else format(value, '.3f')}")
    work = {"requests": requests, "concurrency": list(many), "rate": list(rates), "profile": chunk_profile}
    work |= {"voice_state": voice_state, "max_new_tokens": max_new_tokens, "seed": seed}
    figures = {"failed": sum(load.num_failed for load in loads), "loads": result.data()}
    line = json.dumps(facts | work | figures | result.ratios)
    if path is not None:
        path.write_text(line + "\n", encoding="utf-8")
    typer.echo(line)
    _judge(loads)


def _judge(loads: Sequence[Load]) -> None:
    """Warn of failed requests. Raises `EngineError` if all requests of a load failed."""
    for load in loads:
        if load.num_failed == len(load.outcomes):
            codes = ", ".join(load.failures)
            raise EngineError(f"{load.name}: all {load.num_failed} requests failed ({codes}), so nothing was measured")
    if failed := sum(load.num_failed for load in loads):
        total = sum(len(load.outcomes) for load in loads)
        typer.echo(
            f"s1-mini: warning: {failed} of {total} requests failed and are excluded from all other figures", err=True
        )


def _numbers(name: str, text: str) -> tuple[float, ...]:
    """Parse comma-separated numbers above 0."""
    try:
        numbers = tuple(float(word) for word in text.split(",")) if text else ()
    except ValueError:
        raise ParameterError(name, f"{text!r} is not a number or a comma-separated list of numbers") from None
    if not all(math.isfinite(number) and number > 0 for number in numbers):
        raise ParameterError(name, f"{text!r}: every number must be finite and above 0")
    return numbers


def _whole(name: str, number: float) -> int:
    if number != int(number) or number > MAX_CLIENTS:
        raise ParameterError(name, f"{number:g} is not a whole number in [1, {MAX_CLIENTS}]")
    return int(number)


def profile(
    checkpoint: Checkpoint = None,
    device: DeviceName = "auto",
    text: Annotated[
        str, typer.Option(help="Text to speak, as one sentence piece.")
    ] = "The children were playing in the garden behind the house.",
    rows: Annotated[int, typer.Option(min=1, max=1024, help="Batch size.")] = 1,
    repeats: Annotated[int, typer.Option(min=1, help="Timed repetitions, after one warm-up.")] = 5,
    max_frames: Annotated[int, typer.Option(min=1, help="Maximum frames.")] = 150,
    audio_format: FormatName = "wav",
) -> None:
    """Measure the time of each section of an utterance on this machine; print a table, then one line of JSON.

    Example: s1-mini profile --repeats 10 --rows 4
    """
    import json
    from dataclasses import asdict

    config = engine_config(device=device)  # report wrong settings before torch is loaded

    from s1_mini.audio.container import check_format
    from s1_mini.bench.profile import measure_sections
    from s1_mini.bench.report import describe_machine, table
    from s1_mini.runtime.loader import load

    chosen = check_format(audio_format)
    directory = named_checkpoint(checkpoint or config.checkpoint_path).directory
    speaker = load(config.model_copy(update={"checkpoint_path": directory}))
    facts = describe_machine(speaker.device.value) | {"precision": speaker.precision.value}
    sections, frames = measure_sections(
        speaker,
        text,
        repeats=repeats,
        tell=lambda part: typer.echo(f"measuring: {part}", err=True),
        rows=rows,
        max_frames=max_frames,
        audio_format=chosen,
        config=config,
    )
    title = f"{facts['machine']}, torch {facts['torch']}, {rows} rows, {frames} frames, {repeats} repetitions"
    typer.echo(f"{title}, commit {facts['commit']}, {facts['precision']}")
    head = ["section", "calls", "mean ms", "p50", "p95", "ms per repetition", "share %"]
    found = [asdict(section) for section in sections]
    typer.echo(table(head, [[*list(each.values())[:-1], 100 * each["share"]] for each in found]))
    work = {"rows": rows, "frames": frames, "repeats": repeats, "text": text}
    typer.echo(json.dumps({**facts, **work, "sections": found}))
