"""Missing extras are reported in one sentence, with the command that installs them."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from importlib.metadata import PackageNotFoundError
from pathlib import Path
from typing import get_args

import pytest

from plain_install import plain_environment
from s1_mini.exceptions import ConfigurationError
from s1_mini.extras import MODULES, Extra, require

ROOT = Path(__file__).parents[2]


# One process for all: each process would import torch again.
RUN_ALL = """
import contextlib, io, json, sys
from s1_mini.cli.app import run

for line in sys.stdin:
    sys.argv = ["s1-mini", *json.loads(line)]
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()) as told:
        code = run()
    print(json.dumps([code, told.getvalue()]))
"""
COMPLETE = [["--help"], ["serve", "--help"], ["endpoint", "create", "--help"], ["settings"], ["voices", "list"]]
DEPLOYMENT = ["--image", "1.dkr.ecr.eu-west-1.amazonaws.com/a:1", "--role", "arn:aws:iam::123456789012:role/a"]
DEPLOYMENT += ["--artifact", "s3://bucket/1/model.tar.gz"]
COMPLETE.append(["endpoint", "plan", "create", "a", *DEPLOYMENT])
LACKING = {
    "server": [["serve"], ["serve", "--local-endpoint", "a"], ["package", "--check", "model.tar.gz"]],
    "aws": [
        ["corpus", "s3://bucket/texts.csv", "out", "--local"],
        ["corpus", "texts.csv", "s3://bucket/out", "--local"],
        ["package", "--output", "model.tar.gz", "--upload", "s3://bucket/1"],
        ["endpoint", "create", "a", *DEPLOYMENT],
        ["endpoint", "update", "a", *DEPLOYMENT],
        ["endpoint", "autoscale", "a", "--min", "1", "--max", "2", "--slots", "4"],
        ["endpoint", "describe", "a"],
        ["endpoint", "invoke", "a", "Hello."],
        ["endpoint", "delete", "a"],
    ],
    "play": [["say", "Hello.", "--play"]],
    "hub": [["say", "Hello.", "--checkpoint", "owner/name"], ["package", "--checkpoint", "a/b", "-o", "m.tar.gz"]],
    "corpus": [["corpus", "texts.csv", "out", "--local", "--layout", "parquet"]],
    "ray": [["corpus", "texts.csv", "out"]],
    "mcp": [["mcp", "--url", "http://localhost:8080"]],
}


IMPORTED = {"c2pa-python": "c2pa"}  # packages that are imported by another name


def requirements(name: str) -> set[str]:
    """Import names of the packages in a requirements file."""
    lines = (ROOT / name).read_text(encoding="utf-8").splitlines()
    names = {re.split(r"[^\w-]", line)[0] for line in lines if not line.startswith("#")}
    return {IMPORTED.get(name, name.replace("-", "_")) for name in names}


def test_the_extras_are_those_of_the_lists_and_share_nothing_with_a_plain_install() -> None:
    for extra, modules in MODULES.items():
        assert {name.replace(".", "_") for name in modules} == requirements(f"requirements-{extra}.txt")
        assert not set(modules) & requirements("requirements.txt")


def test_a_command_runs_without_extras_or_names_the_missing_one_before_creating_anything(tmp_path: Path) -> None:
    expected = [("", verb) for verb in COMPLETE] + [(extra, verb) for extra, verbs in LACKING.items() for verb in verbs]
    environment = plain_environment(tmp_path) | {"S1_MINI_AWS_REGION": "eu-west-1"}
    before = set(tmp_path.iterdir())

    lines = "".join(f"{json.dumps(verb)}\n" for _, verb in expected)
    command = [sys.executable, "-c", RUN_ALL]
    process = subprocess.run(
        command, input=lines, capture_output=True, text=True, cwd=tmp_path, env=environment, check=False
    )

    assert process.returncode == 0, process.stderr
    for (extra, verb), line in zip(expected, process.stdout.splitlines(), strict=True):
        code, sentence = json.loads(line)
        packages = ", ".join(re.sub("[._]", "-", name) for name in MODULES[extra]) if extra else ""
        commands = rf'pip install "s1-mini\[{extra}\]", or in a checkout pip install -e "\.\[{extra}\]"'
        lacks = rf"s1-mini: .+ needs {packages}, which (is|are) not installed: {commands}\n"
        assert code == (1 if extra else 0), (verb, sentence)
        assert re.fullmatch(lacks if extra else "", sentence), (verb, sentence)
    assert set(tmp_path.iterdir()) == before


@pytest.mark.parametrize("extra", get_args(Extra))
def test_an_unsupported_version_of_any_package_of_an_extra_is_reported_with_its_range(
    extra: Extra, monkeypatch: pytest.MonkeyPatch
) -> None:
    if extra in {"replicas", "vllm"} and sys.platform != "linux":
        pytest.skip("the extra has no packages on this system")
    monkeypatch.setattr("s1_mini.extras.find_spec", lambda _: object())
    monkeypatch.setattr("s1_mini.extras.version", lambda _: "0.0.1.dev1")

    with pytest.raises(ConfigurationError) as caught:
        require(extra, "This")

    for name in MODULES[extra]:
        package = next((each for each in IMPORTED if IMPORTED[each] == name), re.sub("[._]", "-", name))
        assert re.search(rf"{package}[<>=].+, of which version 0\.0\.1\.dev1 is", str(caught.value))
    assert f'pip install "s1-mini[{extra}]"' in str(caught.value)


def test_a_release_candidate_and_a_module_without_metadata_are_accepted(monkeypatch: pytest.MonkeyPatch) -> None:
    def version(name: str) -> str:
        if name == "h11":
            raise PackageNotFoundError(name)
        return "99.0rc1"

    monkeypatch.setattr("s1_mini.extras.version", version)

    require("server", "This")


def test_a_folder_that_is_not_installed_needs_only_the_modules(monkeypatch: pytest.MonkeyPatch) -> None:
    def requires(name: str) -> None:
        raise PackageNotFoundError(name)

    monkeypatch.setattr("s1_mini.extras.requires", requires)
    monkeypatch.setattr("s1_mini.extras.version", lambda _: "0.0.1")

    require("server", "This")
