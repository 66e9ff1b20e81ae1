"""The description of a deployment: a frozen model that `template` turns into a CloudFormation template.

The fields with a description are also the options of `s1-mini endpoint`; the descriptions are the help texts.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Annotated, Any, Literal, Self

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, ValidationError, model_validator

from s1_mini.aws.place import check_location, split_location
from s1_mini.capacity.cards import MACHINES
from s1_mini.exceptions import ConfigurationError

VARIANT = "main"
OWNER_TAG = "s1-mini:endpoint"
MAX_NAME = 50  # characters; SageMaker allows 63 for the longer names that are derived from an endpoint's name
GPU_IMAGE = "al2023-ami-sagemaker-inference-gpu-4-1"  # the only machine image with a driver for CUDA 13
MAX_POOLS = 5  # instance types of a variant
REQUESTS_PER_ENGINE = 4  # default for async endpoints and batches: concurrent requests per engine
MAX_TRANSFORMS = 16  # concurrent transforms of 6 MB, together below SageMaker's limit of 100 MB
PAYLOAD_MB = 6
REPLICAS, PLACEMENT = "S1_MINI_SERVER_REPLICAS", "S1_MINI_PLACEMENT"
GPUS = {machine.instance_type: machine.num_gpus for machine in MACHINES}
REGISTRY = r"\d+\.dkr\.ecr(?:-fips)?\.([a-z0-9-]+)\.amazonaws\.com(?:\.cn)?"  # of ECR, with the region
INSTANCE_TYPES = {"multi-model": "ml.c7i.xlarge"}  # defaults of forms that do not support GPU_INSTANCE
GPU_INSTANCE = "ml.g6.xlarge"
FormName = Literal["real-time", "async", "components", "multi-model", "batch"]

# GB of the local disk. SageMaker rejects VolumeSizeInGB for these instances.
OWN_DISK_GB = {
    "ml.g4dn.xlarge": 125,
    "ml.g4dn.2xlarge": 225,
    "ml.g5.xlarge": 250,
    "ml.g5.2xlarge": 450,
    "ml.g5.4xlarge": 600,
    "ml.g5.12xlarge": 3800,
    "ml.g5.24xlarge": 3800,
    "ml.g5.48xlarge": 7600,
    "ml.g6.xlarge": 250,
    "ml.g6.2xlarge": 450,
    "ml.g6.4xlarge": 600,
    "ml.g6.12xlarge": 3760,
    "ml.g6.24xlarge": 3760,
    "ml.g6.48xlarge": 7520,
    "ml.g6e.xlarge": 250,
    "ml.g6e.2xlarge": 450,
    "ml.g6e.4xlarge": 600,
    "ml.g6e.12xlarge": 3800,
    "ml.g6e.24xlarge": 3800,
    "ml.g6e.48xlarge": 7600,
    "ml.p4d.24xlarge": 8000,
    "ml.p5.48xlarge": 30400,
}


def is_gpu(instance_type: str) -> bool:
    """Return whether instances of this type have an NVIDIA GPU."""
    return re.match(r"ml\.(g\d|gr\d|p\d)", instance_type) is not None


def has_own_disk(instance_type: str) -> bool:
    """Return whether instances of this type have a local disk and therefore reject a volume size."""
    return re.match(r"ml\.(g4dn|g5|g6|g6e|gr6|g7|g7e|p4d|p4de|p5|p5e|p5en|\w+d)\.", instance_type) is not None


def _pairs(given: Any) -> Any:
    """Parse the entries `NAME=VALUE` of a command line."""
    if given is None or isinstance(given, Mapping):
        return given or {}
    for entry in given:
        if "=" not in entry[1:]:
            raise ValueError(f"{entry!r} is not NAME=VALUE")
    return dict(entry.split("=", 1) for entry in given)


def _schedules(given: Any) -> Any:
    """Parse the entries `TITLE=MIN:MAX@EXPRESSION` of a command line."""
    return tuple(_schedule(entry) if isinstance(entry, str) else entry for entry in given or ())


def _schedule(entry: str) -> tuple[str, str, int, int]:
    match = re.fullmatch(r"([^=]+)=(\d+):(\d+)@(.+)", entry)
    if match is None:
        raise ValueError(f"{entry!r} is not TITLE=MIN:MAX@EXPRESSION")
    return match[1], match[4], int(match[2]), int(match[3])


Pairs = Annotated[dict[str, str], BeforeValidator(_pairs)]
Texts = Annotated[tuple[str, ...], BeforeValidator(lambda given: given or ())]
Place = Annotated[str, AfterValidator(check_location)]


class Described(BaseModel):
    """A frozen model whose validation errors are one sentence."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    @classmethod
    def of(cls, **values: Any) -> Self:
        """Build from `values`. Raises `ConfigurationError` with the field, its value and the allowed values."""
        try:
            return cls(**values)
        except ValidationError as error:
            raise ConfigurationError("; ".join(_sentence(each) for each in error.errors())) from None


def _sentence(error: Any) -> str:
    message = error["msg"].removeprefix("Value error, ")
    field = ".".join(str(part) for part in error["loc"])
    if error["type"] == "string_pattern_mismatch":
        message = _PATTERNS.get(field, message)
    elif error["type"] == "extra_forbidden":
        message = "unknown field; correct its name, or upgrade s1-mini"
    return f"{field}={error['input']!r}: {message}" if field else message


class Scaling(Described):
    """The limits and the load at which instances (or copies, with components) are added and removed."""

    minimum: int = Field(1, ge=0, description="Minimum number of instances (or copies, with components).")
    maximum: int = Field(4, ge=1, description="Maximum number of instances (or copies, with components).")
    slots: int = Field(
        4,
        ge=1,
        description="Concurrent requests that one engine sustains: the smaller of slots and expected streams in "
        "`s1-mini plan`.",
    )
    replicas: int | None = Field(None, ge=1, description="Engines per instance or copy. [one per GPU]")
    load: float = Field(0.6, gt=0, le=1, description="Target: average share of the slots in use.")
    request_s: float = Field(5.0, gt=0, description="multi-model: average seconds per request.")
    backlog: float = Field(5.0, gt=0, description="async: target number of waiting requests per engine.")
    schedule: Annotated[tuple[tuple[str, str, int, int], ...], BeforeValidator(_schedules)] = Field(
        (), description="TITLE=MIN:MAX@EXPRESSION, such as night=0:1@cron(0 20 * * ? *); repeatable."
    )
    timezone: str | None = Field(None, description="Time zone of the schedule, such as Europe/Berlin. [UTC]")

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.minimum > self.maximum:
            raise ValueError(f"min={self.minimum}, max={self.maximum}: use 0 <= min <= max and max >= 1")
        return self


class Deployment(Described):
    """Everything about one endpoint or batch. `Deployment.of(…)` raises `ConfigurationError`."""

    name: str
    image: str = Field(
        pattern=rf"^{REGISTRY}/[a-z0-9][a-z0-9._/-]*([:@][\w.:-]+)?$",
        description="Image in ECR: account.dkr.ecr.region.amazonaws.com/name:tag",
        json_schema_extra={"variable": "IMAGE"},
    )
    role: str = Field(
        pattern=r"^arn:aws[a-z-]*:iam::\d{12}:role/.+$",
        description="ARN of the container's IAM role.",
        json_schema_extra={"variable": "ROLE"},
    )
    artifact: Place = Field(
        description="s3://…/model.tar.gz, or a prefix s3://…/", json_schema_extra={"variable": "ARTIFACT"}
    )
    form: FormName = Field("real-time", description="How requests are answered: see docs/deploy.md.")
    instance_type: Texts = Field(
        (),
        description="Instance types in order of preference: the next is used if AWS lacks capacity; repeatable. "
        f"[{GPU_INSTANCE}; multi-model: {INSTANCE_TYPES['multi-model']}]",
        json_schema_extra={"variable": "INSTANCE_TYPE"},
    )
    instances: int = Field(1, ge=1, description="Initial number of instances.")
    env: Pairs = Field({}, description="NAME=VALUE for the container; repeatable.")
    subnet: Texts = Field(
        (), description="Subnet ID of a private network; repeatable.", json_schema_extra={"variable": "SUBNETS"}
    )
    security_group: Texts = Field(
        (),
        description="Security group of the private network; repeatable.",
        json_schema_extra={"variable": "SECURITY_GROUPS"},
    )
    isolated: bool = Field(True, description="Run the container without network access.")
    kms_key: str | None = Field(
        None, description="KMS key that encrypts volumes and outputs.", json_schema_extra={"variable": "KMS_KEY"}
    )
    volume_gb: int | None = Field(None, ge=1, le=512, description="Volume size for instances without a local disk.")
    machine_image: str | None = Field(
        None, description="SageMaker's InferenceAmiVersion. [depends on the instance type]"
    )
    download_timeout_s: int = Field(1200, ge=60, le=3600, description="Timeout for downloading the artifact.")
    startup_timeout_s: int = Field(900, ge=60, le=3600, description="Timeout until /ping returns 200.")
    routing: Literal["LEAST_OUTSTANDING_REQUESTS", "RANDOM", "PREFIX_AWARE"] = Field(
        "LEAST_OUTSTANDING_REQUESTS", description="How SageMaker chooses the instance for a request."
    )
    # With PREFIX_AWARE, the number of concurrent requests of an instance above which another one is used.
    prefix_requests: int = Field(16, ge=1, le=1024)
    detailed_metrics: bool = False  # CloudWatch reads the container's /metrics
    tag: Pairs = Field({}, description="NAME=VALUE for all resources; repeatable.")
    strategy: Literal["rolling", "canary", "linear", "all-at-once"] | None = Field(
        None, description="update: how instances are replaced. [one instance: all-at-once; otherwise rolling]"
    )
    step_percent: int = Field(50, description="update: percentage of the instances per step.")
    step_wait_s: int = Field(
        300, ge=0, le=3600, description="update: seconds between steps, during which an alarm can roll back."
    )
    keep_old_s: int = Field(300, ge=0, le=3600)  # how long old instances are kept after an update
    limit_s: int = Field(7200, ge=600, le=28800)  # maximum duration of an update
    alarm: Texts = Field(
        (), max_length=10, description="update: alarm that rolls back; repeatable. [the stack's alarms]"
    )
    latency_alarm_s: float = Field(55.0, gt=0)  # an update is rolled back if p95 of the latency reaches this
    output: Place | None = Field(
        None, description="async, batch: s3://… for the responses.", json_schema_extra={"variable": "OUTPUT"}
    )
    failures: Place | None = Field(None, description="async: s3://… for failures.")
    success_topic: str | None = Field(None, description="async: ARN of an SNS topic for successes.")
    error_topic: str | None = Field(None, description="async: ARN of an SNS topic for errors.")
    concurrent: int | None = Field(
        None, ge=1, description="async, batch: concurrent requests per instance. [4 per engine]"
    )
    source: Place | None = Field(None, description="batch: s3://… with lines of JSON.")
    endpoint: str | None = None  # components: endpoint of another deployment, whose instances this one shares
    copies: int = Field(1, ge=0, description="components: initial number of copies.")
    memory_mb: int = Field(4096, ge=128, description="components: memory per copy.")
    accelerators: int = Field(1, ge=0, description="components: GPUs per copy.")
    cpu_cores: float = Field(1.0, ge=0.25, description="components: CPU cores per copy.")
    min_instances: int = Field(0, ge=0, description="components: minimum number of instances.")
    max_instances: int = Field(2, ge=1, description="components: maximum number of instances.")
    spread: bool = Field(False, description="components: spread copies across instances and zones.")
    accelerator_partition: str | None = Field(None, description="Not supported: CloudFormation cannot divide a GPU.")
    scaling: Scaling | None = None

    @model_validator(mode="before")
    @classmethod
    def _choose_instance_type(cls, given: Any) -> Any:
        chosen = INSTANCE_TYPES.get(given.get("form"), GPU_INSTANCE)
        return given if given.get("instance_type") else {**given, "instance_type": (chosen,)}

    @model_validator(mode="after")
    def _check(self) -> Self:
        check_name(self.name)
        wrong = [message for is_wrong, message in (*self._instance_rules(), *self._form_rules()) if is_wrong]
        if problem := next(iter(wrong), None) or self._step_problem():
            raise ValueError(problem)
        return self

    def _instance_rules(self) -> list[tuple[bool, str]]:
        types, form = self.instance_type, self.form
        given = f"instance_type={' '.join(types)!r}"
        with_disk = next(filter(has_own_disk, types), None)
        return [
            (
                not 1 <= len(types) <= MAX_POOLS or len(set(types)) < len(types),
                f"{given}: use 1 to {MAX_POOLS} different instance types",
            ),
            (
                len({is_gpu(each) for each in types}) > 1,
                f"{given}: either all types of a pool have a GPU or none has, because they share one image",
            ),
            (
                len({GPUS.get(each, 1) for each in types}) > 1,
                f"{given}: all types of a pool need the same number of GPUs, because they share one scaling target",
            ),
            (
                len(types) > 1 and form in {"batch", "multi-model", "components"},
                f"{given}: form {form} takes one instance type",
            ),
            (
                self.volume_gb is not None and with_disk is not None,
                f"volume_gb={self.volume_gb}: {with_disk} has a local disk of fixed size; remove --volume-gb",
            ),
            (
                form == "multi-model" and any(map(is_gpu, types)),
                f"{given}: multi-model supports CPUs only; for many models on GPUs use --form components",
            ),
            (
                self.accelerator_partition is not None,
                f"accelerator_partition={self.accelerator_partition!r}: CloudFormation cannot divide a GPU yet, only "
                "SageMaker's API; use a smaller --instance-type, or --form components with whole GPUs",
            ),
            (
                self.min_instances > self.max_instances,
                f"min_instances={self.min_instances} is more than max_instances={self.max_instances}",
            ),
        ]

    def _form_rules(self) -> list[tuple[bool, str]]:
        form, given = self.form, f"artifact={self.artifact!r}"
        lowest = min((self.scaling.minimum, *(low for _, _, low, _ in self.scaling.schedule))) if self.scaling else 1
        return [
            (
                not self.artifact.endswith(("/", ".tar.gz")),
                f"{given}: use a .tar.gz, or a prefix that ends with a slash",
            ),
            (form == "batch" and self.is_prefix, f"{given}: a batch takes a .tar.gz only"),
            (
                form == "multi-model" and not self.is_prefix,
                f"{given}: multi-model takes the prefix of the .tar.gz files, with a slash at the end",
            ),
            (
                bool(self.subnet) != bool(self.security_group),
                "subnet, security_group: a private network needs both; give both or neither",
            ),
            (form in {"async", "batch"} and not self.output, f"output: form {form} needs --output s3://…"),
            (
                self.endpoint is not None and form != "components",
                f"endpoint={self.endpoint!r}: only components share the instances of another endpoint",
            ),
            (form == "batch" and not self.source, "source: form batch needs --source s3://…"),
            (
                form == "batch" and (self.concurrent or 1) > MAX_TRANSFORMS,
                f"concurrent={self.concurrent}: a batch takes 1 to {MAX_TRANSFORMS}, because all requests together "
                "must stay below 100 MB",
            ),
            (form == "batch" and self.scaling is not None, "form='batch': a batch does not scale; set --instances"),
            (
                lowest == 0 and form not in {"async", "components"},
                f"min=0: {form} keeps at least 1 instance; only async and components scale to zero",
            ),
        ]

    def _step_problem(self) -> str | None:
        strategy = self.strategy or "rolling"
        low, high = {"rolling": (5, 50), "canary": (1, 50), "linear": (10, 50), "all-at-once": (0, 100)}[strategy]
        if not low <= self.step_percent <= high:
            return f"step_percent={self.step_percent}: {strategy} allows {low} to {high} percent per step"
        steps = {"canary": 1, "all-at-once": 0}.get(strategy, -(-100 // max(1, self.step_percent)))
        if steps * self.step_wait_s + self.keep_old_s > self.limit_s:
            return (
                f"step_wait_s={self.step_wait_s}: {steps} steps and keep_old_s={self.keep_old_s} exceed "
                f"limit_s={self.limit_s}"
            )
        return None

    @property
    def is_prefix(self) -> bool:
        """Whether the artifact is a prefix: of uncompressed files, or with multi-model of .tar.gz files."""
        return self.artifact.endswith("/")

    @property
    def chosen_machine_image(self) -> str | None:
        """The given machine image, or the one that a GPU needs."""
        return self.machine_image or (GPU_IMAGE if is_gpu(self.instance_type[0]) else None)

    @property
    def num_gpus(self) -> int:
        """GPUs of one container: with components those of a copy, otherwise those of the instance."""
        return self.accelerators if self.form == "components" else GPUS.get(self.instance_type[0], 1)

    @property
    def replicas(self) -> int:
        """Engines of one container: one per GPU, unless `env` sets their number or a placement."""
        given = self.env.get(REPLICAS, "auto")
        if given.isdecimal():
            return max(1, int(given))
        return 1 if self.env.get(PLACEMENT) else max(1, self.num_gpus)

    def check_region(self, region: str | None) -> None:
        """Raise `ConfigurationError` if the image is in another region than the endpoint; None: not known yet."""
        found = re.match(REGISTRY, self.image)
        if region is not None and found is not None and found[1] != region:
            raise ConfigurationError(
                f"image={self.image!r}: is in {found[1]}, the endpoint in {region}: SageMaker pulls images of its own "
                f"region only; push the image to {region}, or set --region to {found[1]}"
            )

    @property
    def bucket(self) -> str:
        """Bucket of the artifact."""
        return split_location(self.artifact)[0]

    def changed(self, **values: Any) -> Deployment:
        """Return a validated copy with other values. Raises `ConfigurationError`."""
        return Deployment.of(**{**self.model_dump(), **values})


_PATTERNS = {
    "image": "must be an image in ECR, such as 123456789012.dkr.ecr.eu-west-1.amazonaws.com/name:tag, because "
    "SageMaker pulls from no other registry; give it with --image",
    "role": "must have the form arn:aws:iam::ACCOUNT:role/NAME; give the ARN with --role",
}


def check_name(name: str) -> str:
    """Return `name`. Raises `ConfigurationError` if an endpoint cannot have it."""
    if len(name) > MAX_NAME or re.fullmatch(r"[a-zA-Z0-9](-*[a-zA-Z0-9])*", name) is None:
        raise ConfigurationError(
            f"name={name!r}: use 1 to {MAX_NAME} letters, digits and hyphens, with a letter or digit at both ends"
        )
    return name
