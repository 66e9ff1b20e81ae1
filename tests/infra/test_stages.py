"""The stages file and the engine settings derived from it; runs without AWS packages, with all other tests."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

import pytest

from s1_mini import EngineConfig
from s1_mini.capacity.cards import MACHINES
from s1_mini.exceptions import QueueFullError
from s1_mini.server.errors import BusyError, TooManyRequestsError
from s1_mini.server.record import RequestLog
from s1_mini.server.settings import ServerSettings


@pytest.fixture
def stages() -> Any:
    import speech.stages

    return speech.stages


@pytest.fixture
def write(tmp_path: Path, stages: Any) -> Any:
    """Write the defaults and one changed stage, and load them."""

    def _write(table: str, stage: str = "prod") -> Any:
        defaults = stages.STAGES_FILE.read_text(encoding="utf-8").partition("[dev]")[0]
        file = tmp_path / "stages.toml"
        file.write_text(f"{defaults}\n[{stage}]\n{table}\n", encoding="utf-8")
        return stages.read_stage(stage, file)

    return _write


def test_every_stage_of_the_file_can_be_read(stages: Any) -> None:
    read = [stages.read_stage(name) for name in stages.STAGES]

    assert [stage.capacity for stage in read] == ["zero", "scheduled", "tracked"]
    assert set(tomllib.loads(stages.STAGES_FILE.read_text(encoding="utf-8"))) == {"defaults", *stages.STAGES}


def test_the_target_is_a_share_of_the_engines_slots(stages: Any, write: Any) -> None:
    assert write("slots = 8\ntarget_share = 0.5").target == 4.0
    assert write("slots = 16\ntarget_share = 0.5").target == 8.0
    assert stages.concurrency_target(1, 0.5) == 1.0  # below one, an idle engine would already count as overloaded


def test_every_gpu_of_an_instance_has_an_engine_with_its_slots(stages: Any, write: Any) -> None:
    several = write("instance_type = 'ml.g6.12xlarge'\nslots = 10\ntarget_share = 0.5")
    placed = write("instance_type = 'ml.g6.12xlarge'\nslots = 10\nenvironment = {S1_MINI_PLACEMENT = 'codec=cuda:1'}")

    assert (several.all_slots, several.target, several.copy_target(2), several.copy_target(0)) == (40, 20.0, 10.0, 5.0)
    assert several.container_environment()["S1_MINI_SERVER_REPLICAS"] == "auto"
    assert "S1_MINI_SERVER_REPLICAS" not in {**several.container_environment(1), **write("").container_environment()}
    assert placed.all_slots == 10
    assert {each.instance_type: each.num_gpus for each in MACHINES if each.num_gpus > 1} == stages.GPUS


@pytest.mark.parametrize(
    ("table", "named"),
    [
        ("slot = 8", "slot is not a field"),
        ("slots = 0", "slots=0 must be"),
        ("capacity = 'elastic'", "capacity='elastic' must be one of"),
        ("capacity = 'scheduled'", "hours=None go with"),
        ("min_instances = 0", "min_instances=0 can be 0"),
        ("min_instances = 9", "min_instances=9 must be 0 to max_instances"),
        ("min_instances = 1\nrollout = 'canary'", "rollout='canary' needs min_instances"),
        ("target_share = 1.0", "target_share=1.0 must be"),
        ("cidr = '8.8.0.0/16'", "cidr='8.8.0.0/16' must be"),
        ("account = '12'", "account='12' must be"),
        ("instance_type = 'g6.xlarge'", "instance_type='g6.xlarge' must"),
        ("model_prefix = 'models/../secrets/'", "model_prefix="),
        ("log_days = 8", "log_days=8 must be one of"),
        (
            "[prod.components]\ninstance_type = 'ml.g6.xlarge'\nmin_instances = 0\nmax_instances = 1",
            "needs at least one",
        ),
        ("[prod.hours]\nopens = 'x'", "missing"),
        ("slots = '8'", "a value is of the wrong kind"),
        ("slots = 8 9", "stages.toml is not TOML"),
        ("[prod.vpc]\nid = 'mine'\nsubnets = []", "id='mine' must look like vpc-"),
        ("[prod.vpc]\nid = 'vpc-01234567'\nsubnets = ['subnet-01234567']", "must be two or more"),
        ("[prod.vpc]\nid = 'vpc-01234567'\nsubnets = ['subnet-01234567', 'b']", "subnet 'b' must look like subnet-"),
        (
            "[prod.vpc]\nid = 'vpc-01234567'\nsubnets = ['subnet-01234567', 'subnet-12345678']",
            "interface_endpoints=True is for a network of the stage's own",
        ),
    ],
)
def test_an_invalid_stage_value_is_refused_by_name(write: Any, stages: Any, table: str, named: str) -> None:
    with pytest.raises(stages.StageError) as refused:
        write(table)

    assert named in str(refused.value)


def test_a_voice_has_one_model(write: Any, stages: Any) -> None:
    model = "[prod.components.models.{0}]\nmodel_prefix = 'models/{0}/'\nvoices = ['clara']\n"
    shared = "[prod.components]\ninstance_type = 'ml.g6.xlarge'\nmin_instances = 0\nmax_instances = 1\n"

    with pytest.raises(stages.StageError, match="'clara' belongs to one already"):
        write(shared + model.format("one") + model.format("two"))


def test_an_unknown_stage_is_refused_by_name(stages: Any) -> None:
    with pytest.raises(stages.StageError, match="stage='live' is not one of dev, staging, prod"):
        stages.read_stage("live")


def test_the_engine_and_the_server_understand_every_variable(stages: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    stage = stages.read_stage("prod")
    for name, value in stage.container_environment().items():
        monkeypatch.setenv(name, value)

    assert EngineConfig().max_batch_size == stage.slots
    assert EngineConfig().max_queue_size == stage.queue
    assert ServerSettings().request_timeout_s == 55


def test_instances_with_local_disks_are_known(stages: Any) -> None:
    own = ["ml.g4dn.xlarge", "ml.g5.2xlarge", "ml.g6.12xlarge", "ml.g6e.xlarge", "ml.p4d.24xlarge", "ml.p5.48xlarge"]
    none = ["ml.m5.xlarge", "ml.c6i.2xlarge", "ml.p3.2xlarge"]

    assert [name for name in own + none if stages.has_local_storage(name)] == own


def test_log_metrics_read_fields_that_the_server_writes() -> None:
    record = RequestLog(id="1", method="POST", path="/v1/tts", code="queue_full")
    record.spoken = record.first_chunk = record.started

    assert {"first_chunk_ms", "waiting", "code"} <= set(record.fields())
    assert [QueueFullError.code, BusyError.code, TooManyRequestsError.code] == [
        "queue_full",
        "server_busy",
        "too_many_requests",
    ]
