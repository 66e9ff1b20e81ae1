"""Read `stages.toml`: what each stage is, checked before anything is composed. Knows nothing of the CDK."""

from __future__ import annotations

import ipaddress
import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

REPLICAS = "S1_MINI_SERVER_REPLICAS"
STAGES_FILE = Path(__file__).parents[1] / "stages.toml"
STAGES = ("dev", "staging", "prod")
CAPACITIES = ("fixed", "tracked", "scheduled", "zero")
ROLLOUTS = ("all", "canary", "rolling")
LOG_DAYS = (1, 3, 5, 7, 14, 30, 60, 90, 120, 150, 180, 365)  # what CloudWatch knows
CRON = re.compile(r"cron\(\S+ \S+ \S+ \S+ \S+ \S+\)")
PREFIX = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*(/[A-Za-z0-9][A-Za-z0-9._-]*)*/")
INSTANCE = re.compile(r"ml\.([a-z0-9-]+)\.[a-z0-9]+")
# Of types with several GPUs; all others have one, or none. As in s1_mini/capacity/cards.py, which infra does without.
GPUS = {
    **dict.fromkeys(("ml.g4dn.12xlarge", "ml.g5.12xlarge", "ml.g5.24xlarge", "ml.g6.12xlarge", "ml.g6.24xlarge"), 4),
    **dict.fromkeys(("ml.g6e.12xlarge", "ml.g6e.24xlarge"), 4),
    **dict.fromkeys(("ml.g5.48xlarge", "ml.g6.48xlarge", "ml.g6e.48xlarge", "ml.p4d.24xlarge", "ml.p5.48xlarge"), 8),
    **dict.fromkeys(("ml.p5e.48xlarge", "ml.p5en.48xlarge"), 8),
}
VPC, SUBNET = re.compile(r"vpc-[0-9a-f]{8,17}"), re.compile(r"subnet-[0-9a-f]{8,17}")
WORD = re.compile(r"[a-z][a-z0-9-]{0,23}")
VOICE = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
# SageMaker takes neither a volume size nor a volume key for instances that bring their own encrypted disks.
LOCAL_STORAGE = re.compile(r"(c5d|c6id|g4dn|g5|g6|g6e|gr6|inf2|m5d|m6id|p4d|p4de|p5|p5e|p5en|r5d|r6id|trn1|trn1n|trn2)")


class StageError(ValueError):
    """The stage file says something that cannot be; the message names the field."""


@dataclass(frozen=True, kw_only=True)
class Hours:
    """Capacity between two moments of the week; schedules are Application Auto Scaling's six-field cron."""

    timezone: str
    opens: str
    closes: str
    min_instances: int
    max_instances: int


@dataclass(frozen=True, kw_only=True)
class Vpc:
    """A network that is there already: its id, and the subnets that speech is to live in, with a way to S3."""

    id: str
    subnets: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class ComponentModel:
    """One checkpoint as an inference component, and the voices that are asked of it."""

    name: str
    model_prefix: str
    voices: tuple[str, ...] = ()
    min_copies: int = 0
    max_copies: int = 1
    accelerators: int = 1
    memory_mb: int = 8192  # of the instance, not of the GPU


@dataclass(frozen=True, kw_only=True)
class Components:
    """Instances that inference components share."""

    instance_type: str
    min_instances: int
    max_instances: int
    prefix_bytes: int = 1024  # of the body, compared to route alike requests to the same instance
    models: tuple[ComponentModel, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Stage:
    """One stage.

    `capacity`: `fixed` (min_instances, no scaling), `tracked` (target tracking on concurrent requests), `scheduled`
    (that, with other limits within `hours`), `zero` (an inference component that goes down to no instance at all).
    `rollout`: `all` at once, `canary` or `rolling`; all of them roll back on alarms.
    `interface_endpoints`: whether callers inside the network reach AWS's services; what speaks needs none.
    `vpc`: a network that is there already, instead of one of the stage's own at `cidr`.
    """

    name: str
    region: str
    account: str
    cidr: str
    interface_endpoints: bool
    image_tag: str
    model_prefix: str
    instance_type: str
    slots: int
    queue: int
    target_share: float
    capacity: str
    min_instances: int
    max_instances: int
    rollout: str
    latency_p95_s: float
    first_sound_p95_ms: int
    error_percent: float
    log_days: int
    asynchronous: bool
    async_max_instances: int
    emails: tuple[str, ...] = ()
    environment: Mapping[str, str] = field(default_factory=dict)  # more variables for the container
    hours: Hours | None = None
    components: Components | None = None
    vpc: Vpc | None = None

    @property
    def endpoint_name(self) -> str:
        """The real-time endpoint's."""
        return f"s1-mini-{self.name}"

    @property
    def all_slots(self) -> int:
        """What the engines of one instance speak at the same time."""
        return self.slots * self.replicas(GPUS.get(self.instance_type, 1))

    @property
    def target(self) -> float:
        """Concurrent requests per model that scaling aims at: a share of what an instance speaks at the same time."""
        return concurrency_target(self.all_slots, self.target_share)

    def copy_target(self, accelerators: int) -> float:
        """Concurrent requests that scaling aims at for each copy of a component with so many GPUs."""
        return concurrency_target(self.slots * self.replicas(accelerators), self.target_share)

    def replicas(self, num_gpus: int) -> int:
        """Engines of one container: one for each GPU that it sees, unless its variables say otherwise."""
        wanted = self.environment.get(REPLICAS, "auto")
        if wanted.isdecimal():
            return max(1, int(wanted))
        return 1 if "S1_MINI_PLACEMENT" in self.environment else max(1, num_gpus)

    def container_environment(self, num_gpus: int | None = None) -> dict[str, str]:
        """Variables of the container: each engine's slots are those that scaling counts with.

        It sees all GPUs of an instance, or `num_gpus`.
        """
        if num_gpus is None:
            num_gpus = GPUS.get(self.instance_type, 1)
        return {
            "S1_MINI_MAX_BATCH_SIZE": str(self.slots),
            "S1_MINI_MAX_QUEUE_SIZE": str(self.queue),
            "S1_MINI_SERVER_REQUEST_TIMEOUT_S": "55",  # SageMaker gives up after 60
            **({REPLICAS: "auto"} if self.replicas(num_gpus) > 1 else {}),
            **self.environment,
        }


def concurrency_target(slots: int, share: float) -> float:
    """Give the concurrent requests per model to aim at, at least 1: what is above it waits for an instance to come."""
    return max(1.0, round(slots * share, 1))


def has_local_storage(instance_type: str) -> bool:
    """Tell whether the instance brings its own disks, so that neither volume size nor volume key may be asked for."""
    match = INSTANCE.fullmatch(instance_type)
    return match is not None and LOCAL_STORAGE.fullmatch(match[1]) is not None


def has_gpu(instance_type: str) -> bool:
    """Tell whether the instance has NVIDIA GPUs."""
    match = INSTANCE.fullmatch(instance_type)
    return match is not None and match[1][0] in "gp"


def read_stage(name: str, file: Path = STAGES_FILE) -> Stage:
    """Read and check one stage.

    Raises:
        StageError: no such stage, an unknown or missing field, a value that cannot be.
    """
    if name not in STAGES:
        raise StageError(f"stage={name!r} is not one of {', '.join(STAGES)}")
    try:
        tables = tomllib.loads(file.read_text(encoding="utf-8"))
    except tomllib.TOMLDecodeError as error:
        raise StageError(f"{file.name} is not TOML: {error}") from error
    values = {**tables.get("defaults", {}), **tables.get(name, {}), "name": name}
    if "hours" in values:
        values["hours"] = _build(Hours, values["hours"], f"{name}.hours")
    if "vpc" in values:
        values["vpc"] = _build(Vpc, values["vpc"], f"{name}.vpc")
    if "components" in values:
        values["components"] = _components(values["components"], f"{name}.components")
    stage: Stage = _build(Stage, values, name)
    try:
        _check(stage)
    except TypeError as error:
        raise StageError(f"[{name}] a value is of the wrong kind, as a text instead of a number: {error}") from error
    return stage


def _components(values: dict[str, Any], where: str) -> Components:
    models = tuple(
        _build(ComponentModel, {**model, "name": name}, f"{where}.models.{name}")
        for name, model in values.get("models", {}).items()
    )
    built: Components = _build(Components, {**values, "models": models}, where)
    return built


def _build(kind: type, values: dict[str, Any], where: str) -> Any:
    known = {each.name for each in fields(kind)}
    if unknown := sorted(set(values) - known):
        raise StageError(f"[{where}] {unknown[0]} is not a field; known are {', '.join(sorted(known - {'name'}))}")
    given = {key: tuple(value) if isinstance(value, list) else value for key, value in values.items()}
    try:
        return kind(**given)
    except TypeError as error:
        raise StageError(f"[{where}] {str(error).split('__init__() ')[-1]}") from error


def _check(stage: Stage) -> None:
    rules: list[tuple[bool, str, str]] = [
        (stage.capacity in CAPACITIES, "capacity", f"must be one of {', '.join(CAPACITIES)}"),
        (stage.rollout in ROLLOUTS, "rollout", f"must be one of {', '.join(ROLLOUTS)}"),
        (
            not stage.account or re.fullmatch(r"\d{12}", stage.account) is not None,
            "account",
            "must be 12 digits or empty",
        ),
        (_is_network(stage.cidr), "cidr", "must be a private IPv4 network of /16 to /22"),
        (INSTANCE.fullmatch(stage.instance_type) is not None, "instance_type", "must look like ml.g6.xlarge"),
        (PREFIX.fullmatch(stage.model_prefix) is not None, "model_prefix", "must be plain names, each with a / behind"),
        (1 <= stage.slots <= 4096, "slots", "must be 1 to 4096"),
        (stage.queue >= 1, "queue", "must be at least 1"),
        (0.1 <= stage.target_share <= 0.9, "target_share", "must be 0.1 to 0.9 so that there is time to grow"),
        (0 <= stage.min_instances <= stage.max_instances, "min_instances", "must be 0 to max_instances"),
        (stage.max_instances >= 1, "max_instances", "must be at least 1"),
        (stage.async_max_instances >= 1, "async_max_instances", "must be at least 1"),
        (stage.log_days in LOG_DAYS, "log_days", f"must be one of {', '.join(map(str, LOG_DAYS))}"),
        (stage.latency_p95_s > 0, "latency_p95_s", "must be above 0"),
        (0 < stage.error_percent < 100, "error_percent", "must be between 0 and 100"),
        (
            stage.min_instances >= 1 or stage.capacity == "zero",
            "min_instances",
            'can be 0 with capacity = "zero" only: a variant with a model keeps one instance',
        ),
        (
            stage.rollout == "all" or stage.min_instances >= 2,
            "rollout",
            'needs min_instances = 2 or more unless it is "all": a part of one instance cannot be shifted',
        ),
        ((stage.capacity == "scheduled") == (stage.hours is not None), "hours", 'go with capacity = "scheduled"'),
    ]
    for holds, name, rule in rules:
        if not holds:
            raise StageError(f"[{stage.name}] {name}={getattr(stage, name)!r} {rule}")
    if stage.hours is not None:
        _check_hours(stage, stage.hours)
    if stage.vpc is not None:
        _check_vpc(stage, stage.vpc)
    if stage.components is not None:
        _check_components(stage, stage.components)


def _check_vpc(stage: Stage, vpc: Vpc) -> None:
    where = f"[{stage.name}.vpc]"
    if VPC.fullmatch(vpc.id) is None:
        raise StageError(f"{where} id={vpc.id!r} must look like vpc-0123456789abcdef0")
    if len(vpc.subnets) < 2:
        raise StageError(f"{where} subnets={list(vpc.subnets)} must be two or more, in different zones")
    for subnet in vpc.subnets:
        if SUBNET.fullmatch(subnet) is None:
            raise StageError(f"{where} subnet {subnet!r} must look like subnet-0123456789abcdef0")
    if stage.interface_endpoints:
        raise StageError(
            f"[{stage.name}] interface_endpoints=True is for a network of the stage's own; with {where} it must be "
            "false, and that network has what its owner gave it"
        )


def _check_hours(stage: Stage, hours: Hours) -> None:
    for name in ("opens", "closes"):
        if CRON.fullmatch(getattr(hours, name)) is None:
            raise StageError(f"[{stage.name}.hours] {name}={getattr(hours, name)!r} must be cron(…) with six fields")
    if not 1 <= hours.min_instances <= hours.max_instances:
        raise StageError(f"[{stage.name}.hours] min_instances={hours.min_instances} must be 1 to max_instances")


def _check_components(stage: Stage, components: Components) -> None:
    where = f"[{stage.name}.components"
    if not 1024 <= components.prefix_bytes <= 65536:
        raise StageError(f"{where}] prefix_bytes={components.prefix_bytes} must be 1024 to 65536")
    if not 0 <= components.min_instances <= components.max_instances:
        raise StageError(f"{where}] min_instances={components.min_instances} must be 0 to max_instances")
    if not components.models:
        raise StageError(f"{where}] needs at least one table [{stage.name}.components.models.NAME]")
    owners: dict[str, str] = {}
    for model in components.models:
        if WORD.fullmatch(model.name) is None or PREFIX.fullmatch(model.model_prefix) is None:
            raise StageError(
                f"{where}.models] {model.name!r}, {model.model_prefix!r}: names are plain, prefixes end in /"
            )
        if not 0 <= model.min_copies <= model.max_copies or model.max_copies < 1:
            raise StageError(f"{where}.models.{model.name}] min_copies={model.min_copies} must be 0 to max_copies")
        for voice in model.voices:
            if VOICE.fullmatch(voice) is None:
                raise StageError(f"{where}.models.{model.name}] voice {voice!r} must be a plain name of at most 64")
            if voice in owners:
                raise StageError(f"{where}.models.{model.name}] voice {voice!r} belongs to {owners[voice]} already")
            owners[voice] = model.name


def _is_network(cidr: str) -> bool:
    try:
        network = ipaddress.IPv4Network(cidr)
    except ValueError:
        return False
    return network.is_private and 16 <= network.prefixlen <= 22
