"""`s1-mini serve`: the server in front of one engine, until it is told to stop."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from s1_mini.sagemaker.async_store import AsyncStore


def serve(
    host: Annotated[str | None, typer.Option(help="Address to listen on. [127.0.0.1]", show_default=False)] = None,
    port: Annotated[int | None, typer.Option(min=0, max=65_535, help="[8080]", show_default=False)] = None,
    checkpoint: Annotated[Path | None, typer.Option(help="[the voice that ships]", show_default=False)] = None,
    device: Annotated[str | None, typer.Option(help="auto, cpu, cuda, cuda:1, mps.", show_default=False)] = None,
    precision: Annotated[str | None, typer.Option(help="auto, float32, float16, bfloat16.", show_default=False)] = None,
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

    from s1_mini.server.run import check_port, run
    from s1_mini.server.settings import ServerSettings

    settings = ServerSettings(**_given(host=host, port=port))
    check_port(settings.host, settings.port)

    from s1_mini.config import EngineConfig
    from s1_mini.engine import ProductionTTSEngine
    from s1_mini.sagemaker.app import make_container_app

    named = _given(checkpoint_path=checkpoint, device=device, precision=precision, max_batch_size=max_batch_size)
    engine = ProductionTTSEngine(EngineConfig(**named))
    store = None if local_endpoint is None else _open_store(async_store)
    app = make_container_app(engine, settings, endpoint=local_endpoint, store=store)
    raise typer.Exit(run(app))


def _open_store(place: str | None) -> AsyncStore:
    from s1_mini.sagemaker.async_store import open_store

    if place is None:
        place = tempfile.mkdtemp(prefix="s1-mini-async-")
        typer.echo(f"s1-mini: asynchronous answers go to {place}", err=True)
    return open_store(place)


def _given(**values: object) -> dict[str, object]:
    return {name: value for name, value in values.items() if value is not None}
