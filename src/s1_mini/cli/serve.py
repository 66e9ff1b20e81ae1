"""`s1-mini serve`: the server in front of one engine, until it is told to stop."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from s1_mini.cli.verb import DEVICES, PRECISIONS, completing, engine_config

if TYPE_CHECKING:
    from s1_mini.sagemaker.async_store import AsyncStore


def serve(
    host: Annotated[str | None, typer.Option(help="Address to listen on. [127.0.0.1]", show_default=False)] = None,
    port: Annotated[int | None, typer.Option(min=0, max=65_535, help="[8080]", show_default=False)] = None,
    checkpoint_path: Annotated[
        Path | None,
        typer.Option("--checkpoint", help="Checkpoint directory. [the voice that ships]", show_default=False),
    ] = None,
    device: Annotated[
        str | None,
        typer.Option(help="auto, cpu, cuda, cuda:1, mps.", autocompletion=completing(*DEVICES), show_default=False),
    ] = None,
    precision: Annotated[
        str | None,
        typer.Option(
            help="auto, float32, float16, bfloat16.", autocompletion=completing(*PRECISIONS), show_default=False
        ),
    ] = None,
    max_batch_size: Annotated[
        int | None, typer.Option(min=1, help="Sentences spoken at once. [4; a GPU: what fits]", show_default=False)
    ] = None,
    local_endpoint: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="Answer boto3 as a SageMaker endpoint of this name.", show_default=False),
    ] = None,
    async_store: Annotated[
        str | None,
        typer.Option(help="Folder or s3://bucket/prefix of its asynchronous answers. [a new folder]"),
    ] = None,
) -> None:
    """Serve over HTTP; settings are S1_MINI_* and S1_MINI_SERVER_* variables too.

    Example: s1-mini serve --port 8080, then open http://localhost:8080/
    """
    from s1_mini.extras import require

    require("server", "`s1-mini serve`")

    from s1_mini.sagemaker.settings import ContainerSettings
    from s1_mini.server.settings import ServerSettings
    from s1_mini.weights.directory import find_checkpoint

    # What is wrong is told before torch is loaded, which takes seconds, and before the server listens.
    settings = ServerSettings(**{name: value for name, value in (("host", host), ("port", port)) if value is not None})
    config = engine_config(
        checkpoint_path=checkpoint_path, device=device, precision=precision, max_batch_size=max_batch_size
    )
    ContainerSettings()

    from s1_mini.server.run import check_address, run

    check_address(settings.host, settings.port)
    find_checkpoint(config.checkpoint_path)

    from s1_mini.engine import ProductionTTSEngine
    from s1_mini.sagemaker.app import make_container_app

    engine = ProductionTTSEngine(config)
    store = None if local_endpoint is None else _open_store(async_store)
    app = make_container_app(engine, settings, endpoint=local_endpoint, store=store)
    raise typer.Exit(run(app))


def _open_store(place: str | None) -> AsyncStore:
    from s1_mini.sagemaker.async_store import open_store

    if place is None:
        place = tempfile.mkdtemp(prefix="s1-mini-async-")
        typer.echo(f"s1-mini: asynchronous answers go to {place}", err=True)
    return open_store(place)
