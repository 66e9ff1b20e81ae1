"""`s1-mini serve`: the server in front of one engine, until it is told to stop."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def serve(
    host: Annotated[str | None, typer.Option(help="Address to listen on. [0.0.0.0]", show_default=False)] = None,
    port: Annotated[int | None, typer.Option(min=0, max=65_535, help="[8080]", show_default=False)] = None,
    checkpoint: Annotated[Path | None, typer.Option(help="[the voice that ships]", show_default=False)] = None,
    device: Annotated[str | None, typer.Option(help="auto, cpu, cuda, cuda:1, mps.", show_default=False)] = None,
    precision: Annotated[str | None, typer.Option(help="auto, float32, float16, bfloat16.", show_default=False)] = None,
    max_batch_size: Annotated[
        int | None, typer.Option(min=1, help="Sentences spoken at once. [4]", show_default=False)
    ] = None,
) -> None:
    """Serve over HTTP; settings are S1_MINI_* and S1_MINI_SERVER_* variables too.

    Example: s1-mini serve --port 8080, then open http://127.0.0.1:8080/docs
    """
    from s1_mini.config import EngineConfig
    from s1_mini.engine import ProductionTTSEngine
    from s1_mini.server.app import create_app
    from s1_mini.server.run import run
    from s1_mini.server.settings import ServerSettings

    settings = ServerSettings(**_given(host=host, port=port))
    named = _given(checkpoint_path=checkpoint, device=device, precision=precision, max_batch_size=max_batch_size)
    engine = ProductionTTSEngine(EngineConfig(**named))
    app = create_app(engine, settings)  # what stands above the server adds its routes to `app` here
    raise typer.Exit(run(app))


def _given(**values: object) -> dict[str, object]:
    return {name: value for name, value in values.items() if value is not None}
