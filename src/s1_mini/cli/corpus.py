"""`s1-mini corpus`: synthesize texts into shards, with one engine or several; an interrupted run can be resumed."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from s1_mini.cli.verb import Checkpoint, Device, FormatName, Precision, VoicesPath, engine_config
from s1_mini.exceptions import ParameterError
from s1_mini.types import MAX_SEED

if TYPE_CHECKING:
    from s1_mini.corpus.job import Job
    from s1_mini.corpus.manifest import Entry
    from s1_mini.corpus.source import Source

Show = Callable[[], None]
Say = Callable[[str], None]

LINE_EVERY_S = 60.0  # interval of progress lines without a terminal
HOUR_S = 3600


@dataclass
class CorpusTally:
    """Figures of a corpus of `total` lines; `price` is the hourly price of all machines. Rates cover only this run."""

    total: int
    price: float | None = None
    clock: Callable[[], float] = time.monotonic
    done: int = 0
    bad: int = 0
    cut: int = 0
    seconds: float = 0.0  # duration of the audio
    _begun: float = field(init=False)
    _done_before: int = 0
    _seconds_before: float = 0.0

    def __post_init__(self) -> None:
        self._begun = self.clock()

    def add(self, entry: Entry) -> None:
        """Count a shard."""
        self.done += entry.texts
        self.bad += len(entry.errors)
        self.cut += entry.cut
        self.seconds += entry.seconds

    def begin(self) -> None:
        """Treat everything counted so far as the result of earlier runs."""
        self._begun, self._done_before, self._seconds_before = self.clock(), self.done, self.seconds

    @property
    def spent_s(self) -> float:
        """Duration of this run."""
        return self.clock() - self._begun

    @property
    def rate(self) -> float:
        """Hours of audio per hour."""
        return (self.seconds - self._seconds_before) / self.spent_s if self.spent_s > 0 else 0.0

    @property
    def left_s(self) -> float | None:
        """Estimated seconds for the rest; None before the first result."""
        done = self.done - self._done_before
        return self.spent_s / done * (self.total - self.done) if done else None

    def describe(self) -> str:
        """Return the figures in one line."""
        parts = [f"{self.rate:.1f} h of audio per hour"]
        left_s = self.left_s
        if self.price is not None:
            cost = f"cost {self.spent_s / HOUR_S * self.price:.2f}"
            parts.append(cost if left_s is None else f"{cost} of {(self.spent_s + left_s) / HOUR_S * self.price:.2f}")
        if left_s is not None and self.done < self.total:
            parts.append(f"{_duration(left_s)} left")
        return ", ".join(parts)


def _duration(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes // 60}:{minutes % 60:02}:{rest:02}"


def corpus(
    source: Annotated[
        str,
        typer.Argument(
            metavar="INPUT",
            help=".csv, .tsv, .jsonl, .ndjson or .parquet; a folder of them; s3://bucket/key or prefix.",
        ),
    ],
    output: Annotated[str, typer.Argument(metavar="OUTPUT", help="Folder or s3://bucket/prefix.")],
    local: Annotated[bool, typer.Option("--local", help="Run one engine in this process, without Ray.")] = False,
    actors: Annotated[
        int | None, typer.Option(min=1, help="Number of engines (Ray actors). [one per GPU; one without a GPU]")
    ] = None,
    in_flight: Annotated[
        int | None, typer.Option(min=1, max=8192, help="Texts in progress per engine. [2 x slots]")
    ] = None,
    layout: Annotated[
        Literal["files", "parquet"],
        typer.Option(help="Write each shard as a folder of audio files or as one Parquet file."),
    ] = "files",
    audio_format: FormatName = "wav",
    shard_size: Annotated[int, typer.Option(min=1, max=100_000, help="Texts per shard.")] = 256,
    text_column: Annotated[str | None, typer.Option(help="Column of the text. [text]")] = None,
    id_column: Annotated[
        str | None, typer.Option(help='Column of the id; "" numbers the lines. [id, if present]')
    ] = None,
    voice_column: Annotated[
        str | None, typer.Option(help='Column of the voice; "" for none. [voice, if present]')
    ] = None,
    seed_column: Annotated[
        str | None, typer.Option(help='Column of the seed; "" derives seeds from ids. [seed, if present]')
    ] = None,
    parameters_column: Annotated[
        str | None, typer.Option(help='Column of objects such as {"temperature": 0.7}. [parameters, if present]')
    ] = None,
    voice: Annotated[str | None, typer.Option(metavar="NAME", help="Voice of texts without a voice.")] = None,
    parameters: Annotated[
        str | None,
        typer.Option(
            metavar="JSON", help="JSON object of parameters for all texts, in the format of --parameters-column."
        ),
    ] = None,
    seed: Annotated[
        int, typer.Option(min=0, max=MAX_SEED, help="Combined with the id of a text to derive the text's seed.")
    ] = 0,
    checkpoint_path: Checkpoint = None,
    voices_path: VoicesPath = None,
    device: Device = None,
    precision: Precision = None,
    price: Annotated[
        float | None, typer.Option(min=0.0, help="Price per hour of all machines, to report the cost.")
    ] = None,
    fail_on_error: Annotated[
        bool, typer.Option("--fail-on-error", help="Exit with code 1 if any line failed, in this or an earlier run.")
    ] = False,
) -> None:
    """Synthesize a corpus into shards with a manifest. If interrupted, run it again to resume (docs/corpus.md).

    Example: s1-mini corpus texts.jsonl spoken --local --voice clara
    """
    from s1_mini.audio.container import check_format
    from s1_mini.corpus.job import Job, for_many, make_header
    from s1_mini.corpus.manifest import close_manifest, open_manifest
    from s1_mini.corpus.output import open_output
    from s1_mini.corpus.rows import Defaults, read_parameters
    from s1_mini.corpus.source import open_source
    from s1_mini.extras import require

    # Check everything before loading torch, which takes seconds.
    if local and actors is not None:
        raise ParameterError("actors", "requires Ray and cannot be combined with --local")
    if not local:
        require("ray", "`s1-mini corpus` without --local")
    if layout == "parquet":
        require("corpus", "--layout parquet")
    format_ = check_format(audio_format)
    config = for_many(
        engine_config(checkpoint_path=checkpoint_path, voices_path=voices_path, device=device, precision=precision)
    )
    defaults = Defaults(voice, seed)
    if parameters is not None:
        defaults = read_parameters("parameters", parameters, defaults)
    columns = {
        "text": text_column,
        "id": id_column,
        "voice": voice_column,
        "seed": seed_column,
        "parameters": parameters_column,
    }
    place = open_output(output)
    with open_source(source, columns, defaults, shard_size) as texts:
        header = make_header(texts, config, layout, format_)
        entries = open_manifest(place, header)
        tally = CorpusTally(texts.num_lines, price)
        for entry in entries.values():
            tally.add(entry)
        tally.begin()
        if entries:
            typer.echo(f"{tally.done:,} of {tally.total:,} texts are already in {output}", err=True)
        job = Job(config, output, layout, format_, header, voice, texts.voices, in_flight, shard_size)
        if len(entries) < texts.num_shards:
            for entry in _speak(job, texts, entries, tally, actors=None if local else (actors or 0)):
                entries[entry.shard] = entry
        close_manifest(place, entries, texts.num_shards)
    _report(tally, output)
    _check(tally, output, fail_on_error=fail_on_error)


def _speak(
    job: Job, texts: Source, entries: dict[int, Entry], tally: CorpusTally, *, actors: int | None
) -> Iterator[Entry]:
    """Speak the missing shards, with a progress bar. `actors`: None to run without Ray, 0 for the default number."""
    from s1_mini.corpus.workers import work_here, work_on_ray

    missing = (shard for shard in texts.shards() if shard.number not in entries)
    with _shown(tally) as (show, say):
        work = work_here(job, missing) if actors is None else work_on_ray(job, missing, actors or None, say)
        with closing(work) as whole:  # type: ignore[type-var]
            for entry in whole:
                tally.add(entry)
                show()
                yield entry


@contextmanager
def _shown(tally: CorpusTally) -> Iterator[tuple[Show, Say]]:
    """Yield two functions: the first updates the display of the tally, the second prints a message.

    The display is a progress bar on a terminal, otherwise one line per minute.
    """
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn

    console, said = Console(stderr=True, highlight=False), time.monotonic()
    if not console.is_terminal:

        def show() -> None:
            nonlocal said
            if time.monotonic() - said >= LINE_EVERY_S:
                said = time.monotonic()
                typer.echo(f"{tally.done:,} of {tally.total:,} texts: {tally.describe()}", err=True)

        yield show, lambda sentence: typer.echo(sentence, err=True)
        return
    columns = (TextColumn("speaking"), BarColumn(), TextColumn("{task.completed:,.0f} of {task.total:,.0f} texts"))
    with Progress(*columns, TextColumn("{task.fields[status]}"), console=console, transient=True) as bar:
        task = bar.add_task("speaking", total=tally.total, completed=tally.done, status="")
        yield (
            lambda: bar.update(task, completed=tally.done, status=tally.describe()),
            lambda sentence: console.print(sentence, markup=False),
        )


def _report(tally: CorpusTally, output: str) -> None:
    from s1_mini.corpus.manifest import ERRORS

    spoken = tally.done - tally.bad
    typer.echo(f"{output}: {spoken:,} texts, {tally.seconds / 3600:.2f} h of audio; {tally.describe()}", err=True)
    typer.echo(f"this run took {_duration(tally.spent_s)}", err=True)
    if tally.bad:
        typer.echo(f"s1-mini: warning: {tally.bad:,} lines failed; see {output}/{ERRORS}", err=True)
    if tally.cut:
        typer.echo(f"s1-mini: warning: {tally.cut:,} texts have a sentence that was cut at max_new_tokens", err=True)


def _check(tally: CorpusTally, output: str, *, fail_on_error: bool) -> None:
    """Raise `CorpusError` if all lines failed, or with `fail_on_error` if any line failed."""
    from s1_mini.corpus.manifest import ERRORS
    from s1_mini.corpus.rows import CorpusError

    if tally.bad == tally.done:
        raise CorpusError(f"all {tally.done:,} lines failed")
    if fail_on_error and tally.bad:
        raise CorpusError(f"{tally.bad:,} of {tally.done:,} lines failed; see {output}/{ERRORS}")
