"""Read `stages.toml`: the stages, and the deployments of their endpoints. Does not import the CDK."""

from __future__ import annotations

import tomllib
from collections import Counter
from ipaddress import IPv4Network
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import AfterValidator, Field, model_validator

from s1_mini.aws.deployment import OWNER_TAG, Deployment, Described
from s1_mini.exceptions import ConfigurationError

STAGES_FILE = Path(__file__).parents[1] / "stages.toml"
MODELS, ANSWERS = "models/", "async/"  # prefixes in the bucket: releases; async requests, responses and failures
MAX_CONCURRENT = 1000  # requests per instance of an async endpoint
# Placeholders for values that come from other resources of the stage; the endpoint's stack replaces them.
BUCKET = "s3://bucket/"
PLACEHOLDERS: dict[str, Any] = {
    "image": "123456789012.dkr.ecr.eu-west-1.amazonaws.com/image:tag",
    "role": "arn:aws:iam::123456789012:role/execution",
    "kms_key": "key",
    "subnet": ("subnet",),
    "security_group": ("security-group",),
}
ASYNC_PLACEHOLDERS = {
    "output": f"{BUCKET}{ANSWERS}out",
    "failures": f"{BUCKET}{ANSWERS}failed",
    "success_topic": "done",
    "error_topic": "failed",
}


def _is_network(cidr: str) -> str:
    if not IPv4Network(cidr).is_private or not 16 <= IPv4Network(cidr).prefixlen <= 22:
        raise ValueError("must be a private IPv4 network of /16 to /22")
    return cidr


class Vpc(Described):
    """An existing network, and its subnets for the containers."""

    id: str = Field(pattern=r"^vpc-[0-9a-f]{8,17}$")
    subnets: tuple[Annotated[str, Field(pattern=r"^subnet-[0-9a-f]{8,17}$")], ...] = Field(min_length=2)


class Endpoint(Described):
    """An endpoint, or a model on the instances of another endpoint."""

    deployment: Deployment
    slots: int = Field(ge=1, le=4096)
    voices: tuple[Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$")], ...] = ()

    @property
    def all_slots(self) -> int:
        """Slots of the engines of one instance or copy."""
        return self.slots * self.deployment.replicas


class Stage(Described):
    """A stage with its endpoints."""

    name: str = Field(pattern=r"^[a-z][a-z0-9]{0,19}$")
    region: str = Field(pattern=r"^[a-z]+(-[a-z]+)+-\d$")
    account: str = Field(pattern=r"^(\d{12})?$")
    cidr: Annotated[str, AfterValidator(_is_network)]
    interface_endpoints: bool
    vpc: Vpc | None = None
    image_tag: str = Field(pattern=r"^\w[\w.-]{0,127}$")
    latency_p95_s: float = Field(gt=0)
    first_audio_p95_ms: int = Field(gt=0)
    error_percent: float = Field(gt=0, lt=100)
    log_days: Literal[1, 3, 5, 7, 14, 30, 60, 90, 120, 150, 180, 365]
    emails: tuple[str, ...] = ()
    endpoints: tuple[Endpoint, ...] = Field(min_length=1)

    @property
    def prefix(self) -> str:
        """The beginning of the names of the stage's stacks, endpoints and alarms."""
        return f"s1-mini-{self.name}"

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.vpc and self.interface_endpoints:
            raise ValueError("interface_endpoints=true is not possible with an existing network; set it to false")
        owners = {each.deployment.name for each in self.endpoints if each.deployment.form == "components"}
        for each in self.endpoints:
            if each.deployment.endpoint not in {None, *owners} - {each.deployment.name}:
                raise ValueError(f"endpoint={each.deployment.endpoint!r}: must be another endpoint with components")
        voices = Counter(voice for each in self.endpoints for voice in each.voices)
        if twice := [voice for voice, count in voices.items() if count > 1]:
            raise ValueError(f"voice {twice[0]!r} belongs to several models; remove it from all but one")
        return self


def read_stage(name: str, file: Path = STAGES_FILE) -> Stage:
    """Return one stage of the file. Raises `ConfigurationError`."""
    try:
        tables = tomllib.loads(file.read_text(encoding="utf-8"))
    except tomllib.TOMLDecodeError as error:
        raise ConfigurationError(f"{file.name} is not TOML: {error}") from error
    defaults = tables.pop("defaults", {})
    if name not in tables:
        raise ConfigurationError(f"stage={name!r} is not one of {', '.join(tables)}")
    values = _merge(defaults, tables[name])
    shared, own = values.pop("endpoint", {}), values.pop("endpoints", {})
    try:
        endpoints = tuple(_endpoint(name, key, _merge(shared, table)) for key, table in own.items())
        return Stage.of(**values, name=name, endpoints=endpoints)
    except ConfigurationError as error:
        raise ConfigurationError(f"[{name}] {error}") from None


def _merge(first: dict[str, Any], second: dict[str, Any]) -> dict[str, Any]:
    """Return both tables, with values of the second where both have one."""
    both = {key: _merge(first[key], second[key]) for key in first if isinstance(second.get(key), dict)}
    return {**first, **second, **both}


def _endpoint(stage: str, key: str, table: dict[str, Any]) -> Endpoint:
    try:
        return _build_endpoint(f"s1-mini-{stage}", key, table)
    except ConfigurationError as error:
        raise ConfigurationError(f"endpoints.{key}: {error}") from None


def _build_endpoint(prefix: str, key: str, table: dict[str, Any]) -> Endpoint:
    slots, artifact = table.pop("slots", 0), table.pop("artifact", "")
    voices = table.pop("voices", ())
    form = table.get("form")
    if not artifact.startswith(MODELS):
        raise ConfigurationError(f"artifact={artifact!r}: the container reads only {MODELS}…; upload it there")
    own = {
        **PLACEHOLDERS,
        **(ASYNC_PLACEHOLDERS if form == "async" else {}),
        "name": f"{prefix}-{key}",
        "artifact": f"{BUCKET}{artifact}",
        "tag": {OWNER_TAG: "infra"},  # instead of the name that `s1-mini endpoint` sets
        "prefix_requests": slots,
    }
    if given := sorted(set(own) & set(table)):
        raise ConfigurationError(f"{given[0]} is set by the stage; remove it")
    values = {**table, **own, "env": {"S1_MINI_MAX_BATCH_SIZE": str(slots), **table.get("env", {})}}
    if "scaling" in table:
        values["scaling"] = {**table["scaling"], "slots": slots}
    if "endpoint" in table:
        values["endpoint"] = f"{prefix}-{table['endpoint']}"
    deployment = Deployment.of(**values)
    if form == "async":
        deployment = deployment.changed(concurrent=min(slots * deployment.replicas, MAX_CONCURRENT))
    return Endpoint.of(deployment=deployment, slots=slots, voices=voices)
