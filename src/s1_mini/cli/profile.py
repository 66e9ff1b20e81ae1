"""`s1-mini profile`: where the time of an utterance goes, section by section."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from s1_mini.cli.verb import DEVICES, FORMATS, completing, engine_config, open_checkpoint

TEXT = "The children were playing in the garden behind the house."


def profile(
    checkpoint: Annotated[Path | None, typer.Option(help="[the voice that ships]", show_default=False)] = None,
    device: Annotated[
        str, typer.Option(help="auto, cpu, cuda, cuda:1, mps.", autocompletion=completing(*DEVICES))
    ] = "auto",
    text: Annotated[str, typer.Option(help="What is said, as one sentence piece.")] = TEXT,
    rows: Annotated[int, typer.Option(min=1, max=1024, help="How many say it side by side.")] = 1,
    repeats: Annotated[int, typer.Option(min=1, help="Repetitions that count, after one to warm up.")] = 5,
    max_frames: Annotated[int, typer.Option(min=1, help="Where speech that does not end is cut.")] = 150,
    audio_format: Annotated[
        str, typer.Option("--format", help="wav, flac, mp3, opus, ogg or pcm.", autocompletion=completing(*FORMATS))
    ] = "wav",
) -> None:
    """Measure the sections of an utterance on this machine: a table, then one line of JSON.

    Example: s1-mini profile --repeats 10 --rows 4
    """
    import json
    from dataclasses import asdict

    config = engine_config(device=device)  # what is wrong is told before torch is loaded

    from s1_mini.audio.container import check_format
    from s1_mini.bench.profile import measure_sections
    from s1_mini.bench.report import describe_machine, table
    from s1_mini.runtime.loader import load

    chosen = check_format(audio_format)
    directory = open_checkpoint(checkpoint or config.checkpoint_path).directory
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
    head = ["section", "calls", "mean ms", "p50", "p95", "a repetition", "share %"]
    found = [asdict(section) for section in sections]
    typer.echo(table(head, [[*list(each.values())[:-1], 100 * each["share"]] for each in found]))
    work = {"rows": rows, "frames": frames, "repeats": repeats, "text": text}
    typer.echo(json.dumps({**facts, **work, "sections": found}))
