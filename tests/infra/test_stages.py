"""The stages file and the deployments of its endpoints; runs without AWS packages, with all other tests."""

from __future__ import annotations

import tomllib
from typing import Any

import pytest

from s1_mini import ConfigurationError, EngineConfig
from s1_mini.exceptions import QueueFullError
from s1_mini.server.errors import BusyError, TooManyRequestsError
from s1_mini.server.record import RequestLog

SUBNETS = "['subnet-01234567', 'subnet-12345678']"


@pytest.fixture
def stages() -> Any:
    import speech.stages

    return speech.stages


def deployments(stages: Any, stage: str) -> dict[str, Any]:
    return {each.deployment.name: each.deployment for each in stages.read_stage(stage).endpoints}


def test_every_stage_of_the_file_can_be_read(stages: Any) -> None:
    names = list(tomllib.loads(stages.STAGES_FILE.read_text(encoding="utf-8")))[1:]
    forms = [each.form for name in names for each in deployments(stages, name).values()]

    assert forms == ["components", "real-time", "async", "real-time", "async", "components", "components"]


def test_development_scales_to_zero_staging_by_the_clock_and_production_has_a_canary(stages: Any) -> None:
    dev, staging, prod = (deployments(stages, name)[f"s1-mini-{name}-realtime"] for name in ("dev", "staging", "prod"))

    assert (dev.scaling.minimum, dev.min_instances) == (0, 0)
    assert staging.scaling.timezone == "Europe/Berlin"
    assert [each[2:] for each in staging.scaling.schedule] == [(2, 4), (1, 2)]
    assert (prod.strategy, prod.step_percent) == ("canary", 10)


def test_the_slots_of_a_stage_are_those_of_its_engines_scaling_and_routing(write: Any) -> None:
    table = "[prod.endpoint]\nslots = 10\ninstance_type = ['ml.g6.12xlarge']\nform = 'async'\nscaling = {}"
    (endpoint,) = write(table).endpoints
    deployment = endpoint.deployment

    assert deployment.env["S1_MINI_MAX_BATCH_SIZE"] == "10"
    assert (deployment.scaling.slots, deployment.prefix_requests) == (10, 10)
    assert endpoint.all_slots == deployment.concurrent == 40


@pytest.mark.parametrize(
    ("table", "named"),
    [
        ("slot = 8", "slot=8: unknown field"),
        ("[prod.endpoint]\nslot = 8", "endpoints.realtime: slot=8: unknown field"),
        ("[prod.endpoint]\nslots = 0", "greater than or equal to 1"),
        ("[prod.endpoint]\nform = 'elastic'", "form='elastic': Input should be"),
        ("[prod.endpoint]\nscaling = {minimum = 0}", "only async and components scale to zero"),
        ("[prod.endpoint]\nstrategy = 'canary'\nstep_percent = 60", "canary allows 1 to 50 percent"),
        ("[prod.endpoint]\nscaling = {schedule = ['night']}", "TITLE=MIN:MAX@EXPRESSION"),
        ("[prod.endpoint]\nartifact = 'secrets/'", "artifact='secrets/': the container reads only models/"),
        ("[prod.endpoint]\nrole = 'mine'", "role is set by the stage"),
        ("[prod.endpoint]\nform = 'components'\nendpoint = 'other'", "must be another endpoint with components"),
        ("cidr = '8.8.0.0/16'", "cidr='8.8.0.0/16': must be a private"),
        ("account = '12'", "account='12': "),
        ("log_days = 8", "log_days=8: Input should be 1, 3, 5"),
        ("region = 8 9", "stages.toml is not TOML"),
        ("[prod.vpc]\nid = 'mine'\nsubnets = []", "vpc.id='mine': "),
        ("[prod.vpc]\nid = 'vpc-01234567'\nsubnets = ['subnet-01234567']", "at least 2 items"),
        (f"[prod.vpc]\nid = 'vpc-01234567'\nsubnets = {SUBNETS}", "interface_endpoints=true is not possible with"),
    ],
)
def test_an_invalid_value_is_rejected_by_name(write: Any, table: str, named: str) -> None:
    with pytest.raises(ConfigurationError) as rejected:
        write(table)

    assert str(rejected.value).startswith(("[prod] ", "stages.toml"))
    assert named in str(rejected.value)


def test_a_voice_has_one_model(write: Any) -> None:
    with pytest.raises(ConfigurationError, match="voice 'clara' belongs to several models"):
        write("[prod.endpoint]\nvoices = ['clara']\n[prod.endpoints.other]")


def test_the_engine_understands_the_variables(stages: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    (dev,) = stages.read_stage("dev").endpoints
    for name, value in dev.deployment.env.items():
        monkeypatch.setenv(name, value)

    assert (EngineConfig().max_batch_size, EngineConfig().max_queue_size) == (dev.slots, 64)


def test_log_metrics_read_fields_that_the_server_writes() -> None:
    record = RequestLog(id="1", method="POST", path="/v1/tts", code="queue_full")
    record.spoken = record.first_chunk = record.started

    assert {"first_chunk_ms", "waiting", "code"} <= set(record.fields())
    codes = [QueueFullError.code, BusyError.code, TooManyRequestsError.code]
    assert codes == ["queue_full", "server_busy", "too_many_requests"]
