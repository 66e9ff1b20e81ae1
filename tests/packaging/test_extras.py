"""A plain install speaks; what it lacks for more is said in one sentence, with the command that installs it."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from plain_install import plain_environment
from s1_mini.extras import MODULES

ROOT = Path(__file__).parents[2]


@pytest.fixture
def plain(tmp_path: Path) -> dict[str, str]:
    return plain_environment(tmp_path) | {"S1_MINI_AWS_REGION": "eu-west-1"}


# One process for all: each would load torch anew.
RUN_ALL = """
import contextlib, io, json, sys
from s1_mini.cli.app import run

for line in sys.stdin:
    sys.argv = ["s1-mini", *json.loads(line)]
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()) as told:
        code = run()
    print(json.dumps([code, told.getvalue()]))
"""


def run_all(plain: dict[str, str], verbs: list[list[str]], folder: Path) -> list[tuple[int, str]]:
    """Give exit code and standard error of each."""
    lines = "".join(f"{json.dumps(verb)}\n" for verb in verbs)
    process = subprocess.run(
        [sys.executable, "-c", RUN_ALL], input=lines, capture_output=True, text=True, cwd=folder, env=plain, check=False
    )
    assert process.returncode == 0, process.stderr
    return [tuple(json.loads(line)) for line in process.stdout.splitlines()]


def requirements(name: str) -> set[str]:
    """The packages of a list of requirements, as their names are written in an import."""
    lines = (ROOT / name).read_text(encoding="utf-8").splitlines()
    return {re.split(r"[^\w-]", line)[0].replace("-", "_") for line in lines if not line.startswith("#")}


def test_the_extras_are_those_of_the_lists_and_share_nothing_with_a_plain_install() -> None:
    for extra, modules in MODULES.items():
        assert set(modules) == requirements(f"requirements-{extra}.txt")
        assert not set(modules) & requirements("requirements.txt")


def test_verbs_that_need_no_extra_run_without(plain: dict[str, str], tmp_path: Path) -> None:
    verbs = [["--help"], ["serve", "--help"], ["endpoint", "create", "--help"], ["settings"], ["voices", "list"]]

    assert run_all(plain, verbs, tmp_path) == [(0, "")] * len(verbs)


DEPLOYMENT = ["--image", "1.dkr.ecr.eu-west-1.amazonaws.com/a:1", "--role", "arn:aws:iam::123456789012:role/a"]
DEPLOYMENT += ["--artifact", "s3://bucket/1/model.tar.gz"]
SERVER = [["serve"], ["serve", "--local-endpoint", "a"], ["package", "--check", "model.tar.gz"]]
AWS = [
    ["corpus", "s3://bucket/texts.csv", "out", "--local"],
    ["corpus", "texts.csv", "s3://bucket/out", "--local"],
    ["package", "--output", "model.tar.gz", "--upload", "s3://bucket/1"],
    ["endpoint", "plan", "create", "a", *DEPLOYMENT],
    ["endpoint", "create", "a", *DEPLOYMENT],
    ["endpoint", "update", "a", *DEPLOYMENT],
    ["endpoint", "autoscale", "a", "--min", "1", "--max", "2", "--slots", "4"],
    ["endpoint", "describe", "a"],
    ["endpoint", "invoke", "a", "Hello."],
    ["endpoint", "delete", "a"],
]


def test_what_a_verb_lacks_is_one_sentence_with_the_command_before_anything_is_made(
    plain: dict[str, str], tmp_path: Path
) -> None:
    lacking = {
        "server": SERVER,
        "aws": AWS,
        "play": [["say", "Hello.", "--play"]],
        "hub": [["say", "Hello.", "--checkpoint", "owner/name"], ["package", "--checkpoint", "a/b", "-o", "m.tar.gz"]],
        "corpus": [["corpus", "texts.csv", "out", "--local", "--layout", "parquet"]],
        "ray": [["corpus", "texts.csv", "out"]],
    }
    wanted = [(extra, verb) for extra, verbs in lacking.items() for verb in verbs]
    before = set(tmp_path.iterdir())

    told = run_all(plain, [verb for _, verb in wanted], tmp_path)

    for (extra, verb), (code, sentence) in zip(wanted, told, strict=True):
        packages = ", ".join(MODULES[extra]).replace("_", "-")
        commands = rf'pip install "s1-mini\[{extra}\]", or in a checkout pip install -e "\.\[{extra}\]"'
        ending = rf" needs {packages}, which (is|are) not installed: {commands}\n"
        assert (code, bool(re.fullmatch(f"s1-mini: .+{ending}", sentence))) == (1, True), (verb, sentence)
    assert set(tmp_path.iterdir()) == before
