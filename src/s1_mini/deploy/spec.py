"""What is wanted of AWS, as frozen data: which model, on which machines, in which form, changed and scaled how.

Each class refuses on the spot what no service model knows is wrong: two settings that exclude each other. What a
single value may be is AWS's own business and checked by `check`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from s1_mini.aws.place import split_location
from s1_mini.deploy.call import DIGEST_LENGTH
from s1_mini.deploy.machines import GPUS, count_replicas, is_gpu
from s1_mini.exceptions import ConfigurationError

VARIANT = "main"
MAX_NAME = 63 - 1 - DIGEST_LENGTH  # what a config of this endpoint is called must fit into 63 characters
GPU_IMAGE = "al2023-ami-sagemaker-inference-gpu-4-1"  # the only one with a driver for CUDA 12.8 and later
Routing = Literal["LEAST_OUTSTANDING_REQUESTS", "RANDOM", "PREFIX_AWARE"]
Rolling = Literal["rolling", "canary", "linear", "all-at-once"]
FormName = Literal["real-time", "async", "components", "multi-model", "batch"]

_NAME = re.compile(r"[a-zA-Z0-9](-*[a-zA-Z0-9])*")


@dataclass(frozen=True)
class Model:
    """An image, the role it runs as, and what SageMaker puts into /opt/ml/model.

    `artifact` is a `s3://…/model.tar.gz`, or a prefix `s3://…/` whose objects are taken as they are.
    """

    image: str
    role: str
    artifact: str
    environment: Mapping[str, str] = field(default_factory=dict)
    subnets: tuple[str, ...] = ()
    security_groups: tuple[str, ...] = ()
    isolated: bool = True  # the container reaches nothing; S3, logs and metrics are SageMaker's and still work

    def __post_init__(self) -> None:
        if not self.artifact.startswith("s3://") or not self.bucket:
            raise ConfigurationError(f"artifact={self.artifact!r}: not s3://bucket/key")
        if not self.artifact.endswith(("/", ".tar.gz")):
            raise ConfigurationError(
                f"artifact={self.artifact!r}: allowed are a .tar.gz and a prefix that ends with a slash"
            )
        if bool(self.subnets) != bool(self.security_groups):
            raise ConfigurationError("subnets and security_groups: a private network needs both, or give neither")

    @property
    def bucket(self) -> str:
        """The bucket of the artifact."""
        return split_location(self.artifact)[0]

    @property
    def key(self) -> str:
        """The key, or the prefix, of the artifact."""
        return split_location(self.artifact)[1]

    @property
    def is_prefix(self) -> bool:
        """Whether the artifact is many objects, as they are."""
        return self.artifact.endswith("/")


@dataclass(frozen=True)
class Fleet:
    """The machines, and how long one may take to start."""

    instance_type: str
    instances: int = 1
    volume_gb: int | None = None
    download_timeout_s: int = 1200
    startup_timeout_s: int = 900
    machine_image: str | None = None  # InferenceAmiVersion; a GPU gets one that runs CUDA 13
    routing: Routing = "LEAST_OUTSTANDING_REQUESTS"
    prefix_length: int = 1024  # bytes of a body that decide, with PREFIX_AWARE
    prefix_concurrency: int = 16  # requests at a machine before its neighbours get them, with PREFIX_AWARE
    kms_key: str | None = None  # of the volumes

    @property
    def chosen_machine_image(self) -> str | None:
        """The machine image named, or the one that a GPU needs."""
        return self.machine_image or (GPU_IMAGE if is_gpu(self.instance_type) else None)


@dataclass(frozen=True)
class Rollout:
    """How an update replaces what runs, and what makes SageMaker go back by itself.

    Without a strategy one machine is replaced by a new one beside it, and more of them a few at a time. `alarms` are
    names of alarms that exist; with none, two are made: answers 5xx, and the slowest 5 % of answers.
    """

    strategy: Rolling | None = None
    step_percent: int = 50
    wait_s: int = 300
    keep_old_s: int = 300
    limit_s: int = 7200
    alarms: tuple[str, ...] = ()
    latency_alarm_s: float = 55.0

    def __post_init__(self) -> None:
        strategy = self.strategy or "rolling"
        low, high = {"rolling": (5, 50), "canary": (1, 50), "linear": (10, 50), "all-at-once": (0, 100)}[strategy]
        if not low <= self.step_percent <= high:
            raise ConfigurationError(
                f"step_percent={self.step_percent}: {strategy} takes {low} to {high} percent at a time"
            )
        steps = {"canary": 1, "all-at-once": 0}.get(strategy, -(-100 // max(1, self.step_percent)))
        if steps * self.wait_s + self.keep_old_s > self.limit_s:
            raise ConfigurationError(
                f"limit_s={self.limit_s}: {steps} waits of {self.wait_s} s and {self.keep_old_s} s more do not fit"
            )
        if len(self.alarms) > 10:
            raise ConfigurationError(f"alarms: {len(self.alarms)} given, 10 allowed")


@dataclass(frozen=True)
class RealTime:
    """Answers at once, whole or streamed."""


@dataclass(frozen=True)
class Async:
    """Answers into S3, may be an hour late, and may have no machine at all while nothing waits."""

    output: str
    failures: str | None = None
    success_topic: str | None = None
    error_topic: str | None = None
    max_concurrent: int | None = None  # requests at a machine; None: four for each engine
    kms_key: str | None = None


@dataclass(frozen=True)
class Components:
    """Copies of a model on shared machines; both may shrink to zero."""

    copies: int = 1
    memory_mb: int = 4096
    accelerators: int = 1
    cpu_cores: float = 1.0
    min_instances: int = 0
    max_instances: int = 2

    def __post_init__(self) -> None:
        if self.min_instances > self.max_instances:
            raise ConfigurationError(f"min_instances={self.min_instances} is more than max={self.max_instances}")


@dataclass(frozen=True)
class MultiModel:
    """Many artifacts behind one endpoint; a caller names the one."""


@dataclass(frozen=True)
class Batch:
    """No endpoint: machines that read lines from S3, write lines to S3, and go."""

    source: str
    output: str
    payload_mb: int = 6
    concurrent: int | None = None  # requests at a machine; None: four for each engine, up to sixteen
    timeout_s: int = 600
    retries: int = 3
    kms_key: str | None = None

    def __post_init__(self) -> None:
        if self.concurrent is not None and self.payload_mb * self.concurrent > 100:
            raise ConfigurationError(
                f"payload_mb={self.payload_mb} times concurrent={self.concurrent}: at most 100 MB together"
            )


Form = RealTime | Async | Components | MultiModel | Batch


def form_name(form: Form) -> FormName:
    """Give the word for `form`."""
    names: dict[type, FormName] = {
        RealTime: "real-time",
        Async: "async",
        Components: "components",
        MultiModel: "multi-model",
        Batch: "batch",
    }
    return names[type(form)]


@dataclass(frozen=True)
class Deployment:
    """All of it, under one name."""

    name: str
    model: Model
    fleet: Fleet
    form: Form = field(default_factory=RealTime)
    rollout: Rollout = field(default_factory=Rollout)
    tags: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        check_name(self.name)
        form, artifact = self.form, self.model.artifact
        if isinstance(form, Batch) and self.model.is_prefix:
            raise ConfigurationError(f"artifact={artifact!r}: a batch takes a .tar.gz only")
        if isinstance(form, MultiModel) and not self.model.is_prefix:
            raise ConfigurationError(f"artifact={artifact!r}: multi-model takes the prefix under which the .tar.gz lie")
        if isinstance(form, MultiModel) and is_gpu(self.fleet.instance_type):
            raise ConfigurationError(
                f"instance_type={self.fleet.instance_type!r}: multi-model runs our container on CPUs only; "
                "for many models on GPUs use --form components"
            )

    @property
    def num_gpus(self) -> int:
        """GPUs that a container sees: a copy's, or those of the machine."""
        if isinstance(self.form, Components):
            return self.form.accelerators
        return GPUS.get(self.fleet.instance_type, 1)

    @property
    def replicas(self) -> int:
        """Engines of one container."""
        return count_replicas(self.num_gpus, self.model.environment)


@dataclass(frozen=True)
class Scaling:
    """Between how many, and at which load, machines (or copies, with components) come and go.

    `slots` is how many requests one engine speaks at once, and `replicas` how many engines a machine (or a copy) has;
    machines are added when more than `load` of all slots are taken on average. `request_s` is how long one takes, for
    the metric that counts requests a minute.
    `schedule` holds (name, schedule expression, minimum, maximum).
    """

    minimum: int = 1
    maximum: int = 4
    slots: int = 4
    load: float = 0.6
    request_s: float = 5.0
    backlog: float = 5.0  # async: waiting requests for each engine
    out_s: int = 60
    in_s: int = 300
    schedule: tuple[tuple[str, str, int, int], ...] = ()
    replicas: int | None = None  # None: as many as what scales has GPUs

    def __post_init__(self) -> None:
        if not 0 <= self.minimum <= self.maximum or self.maximum < 1:
            raise ConfigurationError(
                f"min={self.minimum}, max={self.maximum}: allowed are 0 <= min <= max and 1 <= max"
            )
        if self.slots < 1:
            raise ConfigurationError(f"slots={self.slots}: an engine has at least 1")
        if not 0 < self.load <= 1:
            raise ConfigurationError(f"load={self.load}: allowed is a share above 0, up to 1")
        if self.request_s <= 0 or self.backlog <= 0:
            raise ConfigurationError(f"request_s={self.request_s}, backlog={self.backlog}: both must be above 0")


def check_name(name: str) -> str:
    """Give `name` back if it can be an endpoint of ours; raise `ConfigurationError` if not."""
    if len(name) > MAX_NAME or _NAME.fullmatch(name) is None:
        raise ConfigurationError(
            f"name={name!r}: allowed are 1 to {MAX_NAME} letters, digits and hyphens, a letter or digit at both ends"
        )
    return name
