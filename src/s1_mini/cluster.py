"""Entry point of Ray Serve: `serve run s1_mini.cluster:app` (docs/cluster.md).

It deploys the stages of a family, each with its own replicas and machines, and an ingress, which is the server of
`s1-mini serve`. No other module that runs stages imports Ray.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from s1_mini.config import EngineConfig
from s1_mini.exceptions import ConfigurationError, EngineError, QueueFullError
from s1_mini.extras import require
from s1_mini.families.base import Family
from s1_mini.packaging.verify import open_checkpoint
from s1_mini.remote.ray_settings import ENV_PREFIX, INGRESS, ClusterSettings, Count
from s1_mini.server.settings import ServerSettings

if TYPE_CHECKING:
    from fastapi import FastAPI
    from ray.serve import Application
    from ray.serve.handle import DeploymentHandle

    from s1_mini.remote.remote_stage import ClusterEngine
    from s1_mini.remote.stage_worker import StageEngine
    from s1_mini.remote.work import Call, Facts, Piece, Work

CPUS = 0.2  # default for a replica of a stage, small enough that all stages fit a laptop
SLOTS_ON_GPU, SLOTS_ON_CPU = 64, 4  # default limits of utterances at a replica of the first stage
MANY = 1024  # default limit of utterances at a replica of a later stage; most of them wait for the previous stages
# Ray Serve starts another replica of a stage when the replicas have, on average, more utterances than this share of the
# slots, or of the stage's `max_ongoing` if that is set.
LOAD = 0.75
HEALTH = {"health_check_period_s": 2.0, "health_check_timeout_s": 10.0}
LOOK_S = 2.0  # interval at which the ingress counts replicas for `/health`
FULL_RETRY_S = 1.0
FIGURES = {
    "seconds": "Seconds of work of a stage",
    "steps": "Steps that a stage made",
    "rows": "Rows of the steps of a stage",
    "failed": "Utterances that ended with an error at a stage",
}


def app(args: dict[str, Any]) -> Application:
    """Return the application for Ray Serve, with settings from `S1_MINI_*` variables and `args`.

    Raises `ConfigurationError` if Ray is not installed, settings conflict or the cluster is too small, and
    `CheckpointError`.
    """
    require("ray", "s1_mini.cluster")
    require("server", "the ingress of the cluster")
    try:
        import ray
        from ray import serve
    except ImportError as error:
        raise ConfigurationError(f's1_mini.cluster needs Ray Serve ({error}): pip install "s1-mini[ray]"') from None

    config, cluster = settings_of(args)
    family = open_checkpoint(config, with_weights=False).family
    check(config, cluster, family)
    if ray.is_initialized():  # otherwise the ingress checks the resources when it starts
        check_resources(config, cluster, family.stage_names, _nodes())
    previous: Application | None = None
    stages: dict[str, Application] = {}
    for name in family.stage_names:
        options = options_of(name, config, cluster, is_first=previous is None)
        previous_name = next(reversed(stages), "")
        bound = serve.deployment(StageReplica).options(**options).bind(config, name, cluster, previous, previous_name)
        previous = stages[name] = bound
    server = ServerSettings()
    options = options_of(INGRESS, config, cluster, is_first=False) | {
        # Above the server's own limit, so that the server itself refuses requests, and still answers `/ping`.
        "max_ongoing_requests": 2 * server.max_requests,
        "graceful_shutdown_timeout_s": server.drain_timeout_s,
    }
    ingress = serve.deployment(serve.ingress(_started_app)(Ingress)).options(**options)
    return ingress.bind(config, server, cluster, stages)


def settings_of(args: Mapping[str, Any]) -> tuple[EngineConfig, ClusterSettings]:
    """Return engine and cluster settings from keywords. Raises `ConfigurationError` if one is unknown or invalid."""
    ours = {name: value for name, value in args.items() if name in ClusterSettings.model_fields}
    config = EngineConfig(**{name: value for name, value in args.items() if name not in ours})
    if config.checkpoint_path is not None and config.checkpoint_path.is_dir():
        config = config.model_copy(update={"checkpoint_path": config.checkpoint_path.resolve()})
    return config, ClusterSettings(**ours)


def check(config: EngineConfig, cluster: ClusterSettings, family: Family) -> None:
    """Raise `ConfigurationError` for conflicting settings."""
    cluster.check_names(family.title, family.stage_names)
    if config.placement:
        raise ConfigurationError(
            f"placement: applies to the stages of one process (S1_MINI_PLACEMENT); on a cluster, {ENV_PREFIX}GPUS "
            "gives each stage its own GPUs"
        )
    if ":" in config.device:
        raise ConfigurationError(
            f"device={config.device!r} names one GPU. On a cluster, Ray assigns GPUs to replicas; use device='cuda'"
        )
    shared = [n for n in family.stage_names if 0 < needs_of(n, config, cluster)["num_gpus"] < 1]
    if shared and config.kv_cache_gb is None:
        raise ConfigurationError(
            f"{ENV_PREFIX}GPUS: {', '.join(shared)} share a GPU, and the first replica would take all of its memory; "
            "set the size of each KV cache (S1_MINI_KV_CACHE_GB)"
        )
    if has_peers(cluster) and config.voices_path is None:
        raise ConfigurationError(
            f"{ENV_PREFIX}REPLICAS: several replicas of {INGRESS} need a shared folder for added voices; set "
            "S1_MINI_VOICES_PATH"
        )


def has_peers(cluster: ClusterSettings) -> bool:
    """Return whether there may be several ingresses, which share added voices and lexicons only in folders."""
    return _count_of(INGRESS, cluster).most > 1


def _count_of(name: str, cluster: ClusterSettings) -> Count:
    return cluster.replicas.get(name, Count(1, 1))


def needs_of(name: str, config: EngineConfig, cluster: ClusterSettings) -> dict[str, float]:
    """Return the CPUs and GPUs of one replica."""
    gpus = cluster.gpus.get(name, float(name != INGRESS and config.device.startswith("cuda")))
    # By default, the ingress reserves no CPU, so that it can start and report missing resources.
    cpus = cluster.cpus.get(name, 0.0 if name == INGRESS else CPUS)
    return {"num_cpus": cpus, "num_gpus": gpus}


def options_of(name: str, config: EngineConfig, cluster: ClusterSettings, *, is_first: bool) -> dict[str, Any]:
    """Return Ray Serve's options of a deployment."""
    count, needs = _count_of(name, cluster), needs_of(name, config, cluster)
    slots = config.max_batch_size or (SLOTS_ON_GPU if needs["num_gpus"] else SLOTS_ON_CPU)
    ongoing = cluster.max_ongoing.get(name, slots if is_first else MANY)
    options = {
        "name": name,
        "ray_actor_options": needs,
        "max_ongoing_requests": ongoing,
        "graceful_shutdown_timeout_s": config.request_timeout_s,
        "max_constructor_retry_count": 3,
        **HEALTH,
    }
    if count.is_fixed:
        return options | {"num_replicas": count.least}
    scaling = {"min_replicas": count.least, "max_replicas": count.most}
    target = LOAD * (ongoing if name in cluster.max_ongoing else slots)
    return options | {"autoscaling_config": scaling | {"target_ongoing_requests": target}}


def check_resources(
    config: EngineConfig, cluster: ClusterSettings, names: Sequence[str], nodes: Sequence[Mapping[str, float]]
) -> None:
    """Raise `ConfigurationError` if the nodes of a cluster are too few or too small."""
    if cluster.grows:
        return
    for kind, key in (("GPU", "num_gpus"), ("CPU", "num_cpus")):
        each = {name: needs_of(name, config, cluster)[key] for name in names}
        largest, available = max((node.get(kind, 0) for node in nodes), default=0), sum(n.get(kind, 0) for n in nodes)
        needed = sum(each[name] * _count_of(name, cluster).least for name in names)
        way_out = (
            f"reduce the number of replicas ({ENV_PREFIX}REPLICAS) or their shares ({ENV_PREFIX}{kind}S), or set "
            f"{ENV_PREFIX}GROWS=true if the cluster adds machines automatically"
        )
        too_large = next((name for name in names if each[name] > largest), None)
        if too_large is not None:
            raise ConfigurationError(
                f"a replica of {too_large} needs {each[too_large]:g} {kind}s, but the cluster's largest machine has "
                f"{largest:g}; {way_out}"
            )
        if needed > available + 1e-6:
            needs = ", ".join(f"{_count_of(n, cluster).least} × {n} ({each[n]:g} each)" for n in names if each[n])
            raise ConfigurationError(
                f"the replicas need {needed:g} {kind}s ({needs}), but the cluster has {available:g}; {way_out}"
            )


def remote(handle: DeploymentHandle, stage: str) -> Call:
    """Return a `Call` to any replica of a stage."""
    from ray.exceptions import RayError, RayTaskError
    from ray.serve.exceptions import BackPressureError, RayServeException

    from s1_mini.remote.work import LostError

    streaming = handle.options(stream=True)

    async def call(work: Work) -> AsyncGenerator[Piece, None]:
        pieces = streaming.speak.remote(work)
        is_over = False
        try:
            async for piece in pieces:
                is_over = piece.is_last or piece.failure is not None
                yield piece
        except BackPressureError:
            raise QueueFullError(MANY, MANY, FULL_RETRY_S, f"utterances of the stage {stage}") from None
        except RayTaskError as error:
            raise EngineError(f"the stage {stage} failed: {str(error).strip().splitlines()[-1]}") from None
        except (RayError, RayServeException) as error:
            raise LostError(f"{type(error).__name__}") from None
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if task is None or task.cancelling():
                raise
            raise LostError("it was stopped") from None
        finally:
            if not is_over:
                pieces.cancel()

    return call


class StageReplica:
    """One stage in its own process."""

    def __init__(
        self,
        config: EngineConfig,
        name: str,
        cluster: ClusterSettings,
        previous: DeploymentHandle | None,
        previous_name: str,
    ) -> None:
        from s1_mini.remote.stage_worker import StageEngine
        from s1_mini.server.logs import set_up_logging

        gpus = needs_of(name, config, cluster)["num_gpus"]
        if not gpus:
            config = config.model_copy(update={"device": "cpu"})
        call = None if previous is None else remote(previous, previous_name)
        set_up_logging("json")
        self._engine: StageEngine = StageEngine(config, name, call)
        self._meter = StageMeter(self._engine)

    async def speak(self, work: Work) -> AsyncGenerator[Piece, None]:
        """Yield the output of the stage for an utterance."""
        try:
            async for piece in self._engine.speak(work):
                yield piece
        finally:
            self._meter.count()

    async def hello(self) -> Facts:
        """Return the facts of the replica."""
        return self._engine.facts

    def check_health(self) -> None:
        """Raise `RuntimeError` if the engine has died; Ray Serve then replaces this replica."""
        if not self._engine.core.is_alive:
            raise RuntimeError(f"the engine of the stage {self._engine.facts.stage} has died")

    def __del__(self) -> None:
        """Close the stage at the end of a drain."""
        with suppress(AttributeError):
            self._engine.close()


class StageMeter:
    """Counters of a stage in Ray's metrics, labelled by deployment and replica."""

    def __init__(self, engine: StageEngine) -> None:
        from ray.serve import metrics

        self._engine, self._counted = engine, dict.fromkeys(FIGURES, 0.0)
        self._counters = {name: metrics.Counter(f"s1_mini_stage_{name}", text) for name, text in FIGURES.items()}

    def count(self) -> None:
        """Add the work since the last call."""
        name, figures = self._engine.policy.name, self._engine.core.ledger.metrics
        now = {
            "seconds": figures.stage_seconds.get(name, 0.0),
            "steps": figures.stage_steps[name],
            "rows": figures.stage_rows[name],
            "failed": sum(count for end, count in figures.ends.items() if end not in ("spoken", "cancelled")),
        }
        for key, figure in now.items():
            if figure > self._counted[key]:
                self._counters[key].inc(figure - self._counted[key])
        self._counted = now


class Ingress:
    """The server of `s1-mini serve`, with an engine whose stages are deployments."""

    async def __init__(  # type: ignore[misc] # Ray Serve awaits it
        self,
        config: EngineConfig,
        server: ServerSettings,
        cluster: ClusterSettings,
        stages: Mapping[str, DeploymentHandle],
    ) -> None:
        from s1_mini.remote.remote_stage import ClusterEngine
        from s1_mini.server.app import create_app
        from s1_mini.server.logs import set_up_logging

        names = list(stages)
        check_resources(config, cluster, names, _nodes())
        set_up_logging(server.log_format)
        if not needs_of(INGRESS, config, cluster)["num_gpus"]:
            config = config.model_copy(update={"device": "cpu"})
        self._replicas: dict[str, dict[str, Any]] = {name: {} for name in names}
        facts: list[Facts] = [await handle.hello.remote() for handle in stages.values()]
        self._engine: ClusterEngine = ClusterEngine(
            config,
            remote(stages[names[-1]], names[-1]),
            facts,
            max_open=cluster.max_open,
            health=lambda: self._replicas,
        )
        await asyncio.to_thread(self._engine.start)
        self._watching = asyncio.create_task(self._watch())
        _STARTED.append(create_app(self._engine, server, has_peers=has_peers(cluster)))

    def check_health(self) -> None:
        """Raise `RuntimeError` if the engine has died; Ray Serve then replaces this replica."""
        if not self._engine.state().is_ready:
            raise RuntimeError("the engine of the ingress has died")

    async def _watch(self) -> None:
        """Count the replicas of each stage for `/health`."""
        while True:
            with suppress(Exception):  # the controller may be temporarily unavailable
                self._replicas = await asyncio.to_thread(_count_replicas, list(self._replicas))
            await asyncio.sleep(LOOK_S)


def _nodes() -> list[dict[str, float]]:
    import ray

    return [node["Resources"] for node in ray.nodes() if node["Alive"]]


_STARTED: list[FastAPI] = []  # a process has at most one ingress


def _started_app() -> FastAPI:
    """Return the ingress' application; Ray Serve calls this after the construction of `Ingress`."""
    return _STARTED[-1]


def _count_replicas(names: Sequence[str]) -> dict[str, dict[str, Any]]:
    from ray import serve

    there = serve.status().applications[serve.get_replica_context().app_name].deployments
    return {
        name: {
            "status": there[name].status.value,
            "replicas": {state.lower(): count for state, count in there[name].replica_states.items()},
        }
        for name in names
        if name in there
    }
