"""`s1-mini package`: from a checkpoint to the artifact that an endpoint loads; send it, or try it on this machine."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from s1_mini.cli.checkpoints import CodecPrecision, ModelPrecision
from s1_mini.exceptions import ConfigurationError


class Layout(StrEnum):
    """Forms of an artifact."""

    archive = "archive"
    prefix = "prefix"


def package(
    checkpoint: Annotated[
        Path | None,
        typer.Option(help="Checkpoint directory. [the voice that ships]", show_default=False),
    ] = None,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="New file or folder to write.", show_default=False)
    ] = None,
    voices: Annotated[
        Path | None, typer.Option(help="Folder of NAME.safetensors, beside the checkpoint's own.", show_default=False)
    ] = None,
    layout: Annotated[
        Layout, typer.Option(help="archive: one .tar.gz; prefix: a folder of files for an uncompressed S3 prefix.")
    ] = Layout.archive,
    precision: Annotated[ModelPrecision, typer.Option(help="Number format of the model.")] = ModelPrecision.keep,
    codec_precision: Annotated[CodecPrecision, typer.Option(help="Number format of the codec's large kernels.")] = (
        CodecPrecision.float16
    ),
    decode_only: Annotated[bool, typer.Option("--decode-only", help="Leave out what only references need.")] = False,
) -> None:
    """Package a checkpoint for an endpoint: the same inputs give the same bytes.

    Example: s1-mini package --checkpoint openaudio-s1-mini --output model.tar.gz
    """
    if output is None:
        raise ConfigurationError("--output is missing: name the new file or folder to write")
    from s1_mini.packaging.layout import lay_out
    from s1_mini.packaging.write import write_archive, write_prefix
    from s1_mini.runtime.loader import find_checkpoint

    members = lay_out(
        find_checkpoint(checkpoint),
        voices=voices,
        precision=precision.value,
        codec_precision=codec_precision.value,
        decode_only=decode_only,
    )
    write = {Layout.archive: write_archive, Layout.prefix: write_prefix}[layout]
    with shown_progress("packaging", sum(member.size for member in members)) as progress:
        manifest = write(members, output, progress=progress)
    for name, content in manifest.files.items():
        typer.echo(f"{content.size:>14,}  {name}", err=True)
    typer.echo(f"wrote {output}; content {manifest.content_sha256}", err=True)


@contextmanager
def shown_progress(what: str, total_bytes: int) -> Iterator[Callable[[int], None]]:
    """Show a bar on a terminal's stderr, nothing elsewhere; gives what to call with each number of bytes done."""
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn, TransferSpeedColumn

    console = Console(stderr=True)
    columns = (TextColumn(what), BarColumn(), DownloadColumn(), TransferSpeedColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console, disable=not console.is_terminal, transient=True) as bar:
        task = bar.add_task(what, total=total_bytes)
        yield lambda done: bar.advance(task, done)
