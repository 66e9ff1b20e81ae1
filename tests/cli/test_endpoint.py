"""`s1-mini endpoint`: planning, listing and error messages."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import pytest
from typer.main import get_command

from deployments import ARCHIVE, BUCKET, IMAGE, PREFIX, REGION, ROLE
from s1_mini.cli.app import app
from s1_mini.cli.endpoint import _write, commands
from tests.cli.conftest import Call

NAMES = {"S1_MINI_AWS_IMAGE": IMAGE, "S1_MINI_AWS_ROLE": ROLE, "S1_MINI_AWS_ARTIFACT": ARCHIVE}


@pytest.fixture
def named(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in NAMES.items():
        monkeypatch.setenv(name, value)


def planned(call: Call, *arguments: str) -> dict[str, str]:
    """Return the names and types of the resources that `endpoint plan` prints."""
    code, out, _ = call("endpoint", "plan", *arguments)
    assert code == 0
    return {name: resource["Type"] for name, resource in json.loads(out)["Resources"].items()}


def test_plan_prints_the_template_without_credentials_or_network() -> None:
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("S1_MINI_", "AWS_"))}
    options = ["--image", IMAGE, "--role", ROLE, "--artifact", PREFIX, "--env", "S1_MINI_MAX_BATCH_SIZE=8"]
    command = [sys.executable, "-m", "s1_mini", "endpoint", "plan", "create", "hello", *options]

    result = subprocess.run(command, capture_output=True, env=environment, check=False)

    assert (result.returncode, result.stderr) == (0, b"")
    resources = json.loads(result.stdout)["Resources"]
    assert list(resources) == ["Model", "Config", "Rollback5xx", "RollbackLatency", "Endpoint"]
    container = resources["Model"]["Properties"]["PrimaryContainer"]
    assert container["Environment"] == {"S1_MINI_MAX_BATCH_SIZE": "8"}


@pytest.mark.parametrize(
    ("form", "options"),
    [
        ("real-time", []),
        ("async", ["--output", "s3://a-bucket/out"]),
        ("components", []),
        ("multi-model", ["--artifact", PREFIX]),
    ],
)
@pytest.mark.usefixtures("named")
def test_every_form_is_planned_with_names_from_variables(call: Call, form: str, options: list[str]) -> None:
    kinds = planned(call, "create", "hello", "--form", form, *options).values()

    assert "AWS::SageMaker::Endpoint" in kinds
    assert ("AWS::SageMaker::InferenceComponent" in kinds) == (form == "components")


@pytest.mark.parametrize("variable", ["S1_MINI_AWS_REGION", "AWS_REGION", "AWS_DEFAULT_REGION"])
@pytest.mark.parametrize(
    "image", ["1.dkr.ecr.eu-west-1.amazonaws.com/a:1", "1.dkr.ecr-fips.us-gov-west-1.amazonaws.com/a@sha256:0a"]
)
@pytest.mark.usefixtures("named")
def test_an_image_of_another_region_is_refused_with_both_regions(
    call: Call, monkeypatch: pytest.MonkeyPatch, variable: str, image: str
) -> None:
    for name in ("S1_MINI_AWS_REGION", "AWS_REGION", "AWS_DEFAULT_REGION"):
        monkeypatch.delenv(name, raising=False)
    region = image.split(".")[3]

    assert call("endpoint", "plan", "create", "hello", "--image", image).code == 0
    assert call("endpoint", "plan", "create", "hello", "--image", image, "--region", region).code == 0
    monkeypatch.setenv(variable, "cn-north-1")
    shown = call("endpoint", "plan", "create", "hello", "--image", image)

    assert shown.code == 1
    assert f"is in {region}, the endpoint in cn-north-1" in shown.err


@pytest.mark.usefixtures("named")
def test_a_batch_and_scaling_are_planned(call: Call) -> None:
    options = ["--form", "batch", "--source", "s3://a-bucket/in", "--output", "s3://a-bucket/out"]

    assert json.loads(call("endpoint", "plan", "create", "hello", *options).out)["TransformJobName"] == "hello"
    scaled = planned(call, "autoscale", "hello", "--schedule", "night=1:2@cron(0 20 * * ? *)")
    assert {"ScalableTarget", "ScalingPolicy"} <= set(scaled)


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        (["--role", "me"], "role='me': must have the form arn:aws:iam::ACCOUNT:role/NAME"),
        (["--volume-gb", "600"], "--volume-gb=600: Input should be less than or equal to 512"),
        (["--artifact", "model.tar.gz"], "must have the form s3://bucket/key"),
        (["--form", "async"], "form async needs --output s3://"),
        (["--form", "batch", "--output", f"s3://{BUCKET}/o"], "form batch needs --source s3://"),
        (["--env", "A"], "env=['A']: 'A' is not NAME=VALUE"),
        (["--schedule", "night"], "TITLE=MIN:MAX@EXPRESSION"),
        (
            ["--accelerator-partition", "mig-3g.40gb"],
            "CloudFormation cannot divide a GPU yet, only SageMaker's API; use",
        ),
        (["--strategy", "canary", "--step-percent", "70"], "canary allows 1 to 50 percent"),
    ],
)
@pytest.mark.usefixtures("named")
def test_bad_input_is_one_sentence_and_exit_code_1(call: Call, options: list[str], sentence: str) -> None:
    action = "autoscale" if "--schedule" in options else "create"

    shown = call("endpoint", "plan", action, "hello", *options)

    assert (shown.code, shown.out) == (1, "")
    assert shown.err.startswith("s1-mini: ")
    assert sentence in shown.err
    assert shown.err.count("\n") == 1


def test_an_unknown_choice_is_reported_with_the_known_ones(call: Call) -> None:
    code, _, shown = call("endpoint", "invoke", "hello", "Hi.", "--mode", "streaming")

    assert code == 2
    assert "Invalid value for '--mode': 'streaming' is not one of 'whole', 'stream'" in shown


def test_missing_options_are_named_with_their_variables(call: Call) -> None:
    code, _, shown = call("endpoint", "create", "hello", "--role", ROLE, "--artifact", ARCHIVE)

    assert code == 2
    assert "S1_MINI_AWS_IMAGE" in shown
    code, _, shown = call("endpoint", "plan", "create", "hello", "--role", ROLE)
    assert code == 1
    assert "plan create needs --image (or S1_MINI_AWS_IMAGE) and --artifact (or S1_MINI_AWS_ARTIFACT)" in shown


@pytest.mark.parametrize(
    "verb",
    [
        ["create", "hello"],
        ["update", "hello"],
        ["list"],
        ["describe", "hello"],
        ["delete", "hello"],
        ["autoscale", "hello"],
        ["invoke", "hello", "Hi."],
    ],
)
@pytest.mark.usefixtures("named")
def test_without_credentials_every_command_says_what_to_run_and_fails(
    call: Call, verb: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("AWS_PROFILE", "AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN"):
        monkeypatch.delenv(name, raising=False)
    for name in ("AWS_CONFIG_FILE", "AWS_SHARED_CREDENTIALS_FILE"):
        monkeypatch.setenv(name, str(tmp_path / "none"))
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")

    code, _, shown = call("endpoint", *verb, "--region", "eu-west-1")

    assert code == 1
    assert "no AWS credentials were found: run `aws configure`" in shown
    assert "Traceback" not in shown
    assert list(tmp_path.iterdir()) == []


def test_the_pages_on_deploying_name_options_and_variables_that_exist() -> None:
    docs = Path(__file__).parents[2] / "docs"
    page = "".join((docs / name).read_text(encoding="utf-8") for name in ("deploy.md", "machines.md"))
    verbs = get_command(commands).commands.values()
    others = [get_command(app).commands[name] for name in ("package", "plan")]
    parameters = [parameter for verb in verbs for parameter in verb.params]
    spoken_of = [*parameters, *(parameter for verb in others for parameter in verb.params)]
    options = {name for parameter in spoken_of for name in (*parameter.opts, *parameter.secondary_opts)}
    variables = {parameter.envvar for parameter in parameters} - {None}
    ours = re.sub(r"^(aws|docker) .*$", "", page, flags=re.MULTILINE)

    assert set(re.findall(r"--[a-z][a-z-]+", ours)) <= options
    assert set(re.findall(r"S1_MINI_AWS_[A-Z_]+", page)) == variables


@pytest.mark.usefixtures("account")
def test_list_shows_a_table_or_says_that_there_are_no_endpoints(call: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "120")
    rows: list[dict[str, object]] = []
    monkeypatch.setattr("s1_mini.aws.stack.Stacks.list_all", lambda _: rows)

    nothing = call("endpoint", "list")
    rows.append({"name": "hello", "status": "InService", "instances": 2, "changed": datetime.now(UTC)})
    table = call("endpoint", "list")

    assert nothing == (0, "", f"no endpoints of s1-mini in {REGION}\n")
    row = next(line for line in table.out.splitlines() if "hello" in line)
    assert "InService" in row
    assert "│ 2 " in row


@pytest.mark.parametrize("error", [OSError("the stream broke off"), KeyboardInterrupt()])
def test_an_incomplete_output_file_is_removed(tmp_path: Path, error: BaseException) -> None:
    def parts() -> Iterator[bytes]:
        yield b"sound"
        raise error

    with pytest.raises(type(error)):
        _write(tmp_path / "out.wav", parts())
    assert not list(tmp_path.iterdir())


def test_an_output_file_that_cannot_be_opened_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise PermissionError

    (tmp_path / "out.wav").write_bytes(b"earlier audio")
    monkeypatch.setattr(Path, "open", refuse)
    with pytest.raises(PermissionError):
        _write(tmp_path / "out.wav", iter([b"sound"]))
    assert (tmp_path / "out.wav").exists()
