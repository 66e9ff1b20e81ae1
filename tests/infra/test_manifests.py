"""Kubernetes and SageMaker manifests are valid: KubeRay's schemas, SageMaker's service model, our own commands."""

from __future__ import annotations

import json
import re
import shlex
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest
import yaml
from jsonschema import Draft202012Validator
from typer.main import get_command

from s1_mini.cli.app import app
from s1_mini.config import EngineConfig
from s1_mini.variables import unknown_variables
from service_models import problems

ROOT = Path(__file__).parents[2]
MANIFESTS = {path.name: yaml.safe_load(path.read_text("utf-8")) for path in sorted(ROOT.glob("infra/ray/*.yaml"))}
PROCESSING = json.loads((ROOT / "infra/processing/corpus.json").read_text("utf-8"))
SCHEMAS = json.loads((ROOT / "tests/assets/kuberay.json").read_text("utf-8"))


def complaints(manifest: dict[str, Any]) -> list[str]:
    """Return the validation errors of a manifest against the schema of its kind."""
    schema = {"$ref": f"#/$defs/{manifest['kind']}", "$defs": SCHEMAS["$defs"]}
    return [f"{error.json_path}: {error.message}" for error in Draft202012Validator(schema).iter_errors(manifest)]


@pytest.mark.parametrize("name", MANIFESTS)
def test_the_manifest_is_valid_for_kuberay(name: str) -> None:
    assert complaints(MANIFESTS[name]) == []


def test_kuberays_schema_detects_errors() -> None:
    wrong = deepcopy(MANIFESTS["corpus.yaml"])
    workers = wrong["spec"]["rayClusterSpec"]["workerGroupSpecs"][0]
    workers["minReplica"] = workers.pop("minReplicas")
    workers["template"]["spec"]["containers"][0]["image"] = 1

    assert len(complaints(wrong)) == 3  # and the correct name is missing


def test_the_processing_job_is_valid_for_sagemaker() -> None:
    assert list(problems("sagemaker", "create_processing_job", PROCESSING)) == []
    wrong = deepcopy(PROCESSING)
    wrong["ProcessingResources"]["ClusterConfig"]["InstanceType"] = "ml.g6.3xlarge"
    assert len(list(problems("sagemaker", "create_processing_job", wrong))) == 1


def test_manifests_run_existing_commands_with_their_options() -> None:
    (line,) = (each["spec"]["entrypoint"] for each in MANIFESTS.values() if each["kind"] == "RayJob")
    (script,) = PROCESSING["AppSpecification"]["ContainerArguments"]
    found = re.search(r"s1-mini corpus .*?(?=;)", script)
    assert found is not None

    for command in (line, found[0]):
        program, verb, *options = shlex.split(command)
        given = get_command(app).commands[verb].make_context(verb, options).params  # type: ignore[attr-defined]
        assert (program, verb, given["layout"]) == ("s1-mini", "corpus", "parquet")


def test_manifests_use_existing_settings() -> None:
    (service,) = (each for each in MANIFESTS.values() if each["kind"] == "RayService")
    (served,) = yaml.safe_load(service["spec"]["serveConfigV2"])["applications"]
    args = served["args"]

    assert served["import_path"] == "s1_mini.cluster:app"
    assert EngineConfig(checkpoint_path=args["checkpoint_path"], device=args["device"]).device == "cuda"
    assert list(unknown_variables(PROCESSING["Environment"])) == []
