"""`s1-mini profile`: where the time of an utterance goes, section by section."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from s1_mini.cli.verb import DEVICES, FORMATS, completing, engine_config

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
    sweep: Annotated[bool, typer.Option("--sweep", help="Measure growth along each axis, too: minutes.")] = False,
    path: Annotated[
        Path | None,
        typer.Option("--chart", metavar="FILE", help="PNG to draw; needs s1-mini[chart].", show_default=False),
    ] = None,
) -> None:
    """Measure the sections of an utterance on this machine: a table, then one line of JSON.

    Example: s1-mini profile --repeats 10 --chart profile.png
    """
    import json

    config = engine_config(device=device)  # what is wrong is told before torch is loaded

    from s1_mini.audio.container import check_format, check_writable
    from s1_mini.bench.chart import draw_sections
    from s1_mini.bench.profile import Rehearsal, engine_threads, measure_sections
    from s1_mini.bench.report import describe_machine
    from s1_mini.bench.sweep import Sweep
    from s1_mini.bench.tables import axis_data, axis_table, section_data, section_table
    from s1_mini.extras import require
    from s1_mini.families.registry import check_files
    from s1_mini.runtime.loader import load
    from s1_mini.weights.directory import find_checkpoint

    chosen = check_format(audio_format)
    if path is not None:
        require("chart", "--chart")
        check_writable(path)
    directory = check_files(find_checkpoint(checkpoint or config.checkpoint_path))
    speaker = load(config.model_copy(update={"checkpoint_path": directory}))
    facts = describe_machine(speaker.device.value)
    with engine_threads(speaker):
        rehearsal = Rehearsal(speaker, text, rows=rows, max_frames=max_frames, audio_format=chosen)
        sections = measure_sections(rehearsal, repeats, _tell)
        frames = rehearsal.frames
        measured = Sweep(speaker, repeats=repeats) if sweep else None
        axes = [] if measured is None else measured.run(_tell)

    title = f"{facts['machine']}, torch {facts['torch']}, {rows} rows, {frames} frames, {repeats} repetitions"
    typer.echo(f"{title}, commit {facts['commit']}, {speaker.precision.value}")
    typer.echo(section_table(sections))
    if measured is not None:
        typer.echo(f"sweep: medians of {repeats}, {measured.clock.__name__}")
        typer.echo(axis_table(axes))
    if path is not None:
        draw_sections(path, sections, title)
        typer.echo(f"wrote {path}", err=True)
    more = {"rows": rows, "frames": frames, "repeats": repeats, "precision": speaker.precision.value, "text": text}
    typer.echo(json.dumps({**facts, **more, "sections": section_data(sections), "axes": axis_data(axes)}))


def _tell(part: str) -> None:
    typer.echo(f"measuring: {part}", err=True)
