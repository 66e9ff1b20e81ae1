"""`s1-mini serve`: run the HTTP server until a signal stops it."""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from s1_mini.cli.verb import Checkpoint, Device, Precision, VoicesPath, completing, engine_config, named_checkpoint
from s1_mini.exceptions import ConfigurationError

if TYPE_CHECKING:
    from s1_mini.config import EngineConfig
    from s1_mini.remote.supervisor import ServePlan
    from s1_mini.server.settings import ServerSettings


def serve(
    host: Annotated[str | None, typer.Option(help="Address to listen on. [127.0.0.1]")] = None,
    port: Annotated[int | None, typer.Option(min=0, max=65_535, help="Port to listen on. [8080]")] = None,
    checkpoint_path: Checkpoint = None,
    voices_path: VoicesPath = None,
    device: Device = None,
    precision: Precision = None,
    max_batch_size: Annotated[
        int | None,
        typer.Option(min=1, help="Sentences generated at once (slots). [4 on a CPU, as many as fit on a GPU]"),
    ] = None,
    replicas: Annotated[
        str | None,
        typer.Option(
            metavar="N",
            help="Engines behind the port: a number, or auto for one per GPU. [1]",
            autocompletion=completing("auto", "1", "2", "4", "8"),
        ),
    ] = None,
    wyoming: Annotated[
        int | None, typer.Option(min=0, max=65_535, metavar="PORT", help="Also serve Home Assistant (Wyoming).")
    ] = None,
    local_endpoint: Annotated[
        str | None, typer.Option(metavar="NAME", help="Act as a SageMaker endpoint of this name for boto3.")
    ] = None,
    async_store: Annotated[
        str | None,
        typer.Option(help="Where --local-endpoint stores asynchronous responses: folder or s3://… [a new folder]"),
    ] = None,
) -> None:
    """Serve over HTTP. All other settings are S1_MINI_* and S1_MINI_SERVER_* variables (docs/settings_server.md).

    Example: s1-mini serve --port 8080, then open http://localhost:8080/
    """
    from s1_mini.extras import require

    require("server", "`s1-mini serve`")

    from s1_mini.sagemaker.settings import ContainerSettings
    from s1_mini.server.settings import ServerSettings

    # Report mistakes before torch is loaded, which takes seconds, and before the server listens.
    given = {"host": host, "port": port, "replicas": replicas, "wyoming_port": wyoming}
    settings = ServerSettings(**{name: value for name, value in given.items() if value is not None})
    config = engine_config(
        checkpoint_path=checkpoint_path,
        voices_path=voices_path,
        device=device,
        precision=precision,
        max_batch_size=max_batch_size,
    )
    ContainerSettings()
    settings.signer()

    from s1_mini.server.addresses import check_address

    if local_endpoint is not None:
        from s1_mini.sagemaker.local_endpoint import check_name

        check_name(local_endpoint)
    check_address(settings.host, settings.port)
    if settings.wyoming_port is not None:
        require("wyoming", "`s1-mini serve --wyoming`")
        check_address(settings.wyoming_host, settings.wyoming_port, "--wyoming", "S1_MINI_SERVER_WYOMING_HOST")
    checkpoint = named_checkpoint(config.checkpoint_path, checks=False).directory  # the engine checks its files
    with _async_place(local_endpoint, async_store) as place:
        if settings.replicas != 1:
            plan = _plan_replicas(settings, config, checkpoint, local_endpoint, place)
            if plan is not None:
                from s1_mini.remote.supervisor import run_replicas

                raise typer.Exit(run_replicas(plan))
        if config.checkpoint_path is not None:  # a hub name, resolved a second time, might be a different directory
            config = config.model_copy(update={"checkpoint_path": checkpoint})

        from s1_mini.remote.engine_process import make_engine
        from s1_mini.server.connections import open_more_files

        engine = make_engine(config, settings.engine_process)
        open_more_files()  # the engine's process inherits the limit
        engine.prepare()

        from s1_mini.sagemaker.app import make_container_app
        from s1_mini.sagemaker.async_store import open_store
        from s1_mini.server.run import run

        store = None if place is None else open_store(place)
        app = make_container_app(engine, settings, endpoint=local_endpoint, store=store)
        raise typer.Exit(run(app))


def _plan_replicas(
    settings: ServerSettings,
    config: EngineConfig,
    checkpoint: Path,
    local_endpoint: str | None,
    place: str | None,
) -> ServePlan | None:
    """Plan several replicas; return None if one is enough. Raises `ConfigurationError` if they do not fit."""
    from s1_mini.remote.devices import LocalMachine, count_replicas
    from s1_mini.weights.directory import tensor_bytes

    machine = LocalMachine.here(settings.replicas, counts_gpus=config.device in ("auto", "cuda"))
    count = count_replicas(settings.replicas, config, machine, tensor_bytes(checkpoint))
    if count == 1:
        return None
    if settings.wyoming_port is not None:
        raise ConfigurationError(
            f"--wyoming supports only one replica, not {count}; add `--replicas 1` or omit --wyoming"
        )

    from s1_mini.remote.proxy import find_proxy
    from s1_mini.remote.supervisor import ServePlan
    from s1_mini.sagemaker.async_store import open_store

    proxy = find_proxy()
    if place is not None:
        open_store(place)
    variables = {
        "S1_MINI_SERVER_HOST": settings.host,
        "S1_MINI_SERVER_PORT": str(settings.port),
        "S1_MINI_SERVER_LOG_FORMAT": _log_format(settings),
        "S1_MINI_DEVICE": config.device,
        "S1_MINI_PRECISION": config.precision,
        "S1_MINI_CHECKPOINT_PATH": str(checkpoint.resolve()) if config.checkpoint_path else "",
        "S1_MINI_MAX_BATCH_SIZE": str(config.max_batch_size or ""),
    }
    return ServePlan(count, machine, proxy, config, settings, os.environ | variables, local_endpoint, place)


def _log_format(settings: ServerSettings) -> str:
    """Return the log format for all replicas, with "auto" replaced by the format for this process's stderr."""
    if settings.log_format != "auto":
        return settings.log_format
    return "text" if sys.stderr.isatty() else "json"


@contextmanager
def _async_place(local_endpoint: str | None, async_store: str | None) -> Iterator[str | None]:
    """Yield where a local endpoint stores asynchronous responses: if not given, a new folder, removed if empty."""
    if local_endpoint is None or async_store is not None:
        yield None if local_endpoint is None else async_store
        return
    folder = tempfile.mkdtemp(prefix="s1-mini-async-")
    typer.echo(f"s1-mini: asynchronous responses go to {folder}", err=True)
    try:
        yield folder
    finally:
        with suppress(OSError):  # it has responses
            os.rmdir(folder)
