"""What CI promises, read from its own file: the systems, the README's command, every kind of test, and few rights."""

from __future__ import annotations

import configparser
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).parents[1]
COMMAND = "python scripts/test.py"
DEFAULT = {"slow"}  # marks that the plain command runs
NO_JOB = {"gpu": "hosted machines have none"}

WORKFLOW = yaml.safe_load((ROOT / ".github" / "workflows" / "ci.yml").read_text(encoding="utf-8"))
JOBS: dict[str, Any] = WORKFLOW["jobs"]
MATRIX = re.compile(r"\$\{\{ matrix\.(\w+) \}\}")


def runs(job: dict[str, Any]) -> Iterator[tuple[str, str, list[str]]]:
    """Give for each row of a job's matrix its system, its Python and its commands."""
    matrix = job.get("strategy", {}).get("matrix", {})
    rows = matrix.get("include") or [{name: value} for name, values in matrix.items() for value in values] or [{}]
    for row in rows:

        def fill(text: str, row: dict[str, str] = row) -> str:
            return MATRIX.sub(lambda found: row[found[1]], text)

        (python,) = [step["with"]["python-version"] for step in steps(job, "actions/setup-python")]
        yield fill(job["runs-on"]), fill(python), [fill(step["run"]) for step in job["steps"] if "run" in step]


def steps(job: dict[str, Any], action: str) -> list[dict[str, Any]]:
    return [step for step in job["steps"] if step.get("uses", "").partition("@")[0] == action]


def marks() -> set[str]:
    config = configparser.ConfigParser()
    config.read(ROOT / "setup.cfg", encoding="utf-8")
    return {line.partition(":")[0] for line in config["tool:pytest"]["markers"].strip().splitlines()}


def test_a_change_is_checked_on_linux_windows_and_macos_and_every_python_on_linux() -> None:
    checked = [(system.partition("-")[0], python) for system, python, _ in runs(JOBS["check"])]

    assert {system for system, _ in checked} == {"ubuntu", "windows", "macos"}
    assert {python for system, python in checked if system == "ubuntu"} == {"3.11", "3.12", "3.13"}


def test_ci_runs_the_readme_s_command() -> None:
    readme = (ROOT / "README.md").read_text(encoding="utf-8")

    assert re.search(rf"^{COMMAND} ", readme, re.M)
    assert all(commands == [COMMAND] for _, _, commands in runs(JOBS["check"]))


def test_every_mark_that_the_plain_command_leaves_out_has_a_job() -> None:
    commands = {command for job in JOBS.values() for _, _, each in runs(job) for command in each}

    missing = {mark for mark in marks() - DEFAULT if not {f"{COMMAND} -m {mark}", f"{COMMAND} --{mark}"} & commands}
    assert missing == set(NO_JOB)


def test_no_job_is_for_a_mark_that_is_gone() -> None:
    commands = [command for job in JOBS.values() for _, _, each in runs(job) for command in each]

    assert {command.split()[-1].removeprefix("--") for command in commands if command != COMMAND} <= marks()


def test_what_the_plain_command_leaves_out_is_a_mark() -> None:
    text = (ROOT / "scripts" / "test.py").read_text(encoding="utf-8")
    (everywhere,) = re.findall(r'^EVERYWHERE = "(.+?)"', text, re.M)

    assert {word.removeprefix("not ") for word in everywhere.split(" and ")} == marks() - DEFAULT - {"infra"}


def test_ci_may_read_the_code_and_nothing_else() -> None:
    assert WORKFLOW["permissions"] == {"contents": "read"}
    assert not any("permissions" in job for job in JOBS.values())
    assert "secrets." not in str(WORKFLOW)
    assert "pull_request_target" not in WORKFLOW[True]  # YAML 1.1 reads `on` as true


@pytest.mark.parametrize("name", JOBS)
def test_a_job_ends_in_time_keeps_no_credentials_and_what_pip_has_loaded(name: str) -> None:
    job = JOBS[name]

    assert 0 < job["timeout-minutes"] <= 60
    (checkout,) = steps(job, "actions/checkout")
    assert checkout["with"]["persist-credentials"] is False
    (python,) = steps(job, "actions/setup-python")
    assert python["with"]["cache"] == "pip"
    assert list(ROOT.glob(python["with"]["cache-dependency-path"]))


def test_actions_are_github_s_own_and_of_a_named_version() -> None:
    for job in JOBS.values():
        for step in job["steps"]:
            assert "run" in step or re.fullmatch(r"actions/[a-z-]+@v\d+", step["uses"]), step


def test_a_newer_push_ends_the_run_of_an_older_one_but_never_on_main() -> None:
    assert "github.ref" in WORKFLOW["concurrency"]["group"]
    assert WORKFLOW["concurrency"]["cancel-in-progress"] == "${{ github.ref != 'refs/heads/main' }}"


def test_torch_comes_without_cuda() -> None:
    assert WORKFLOW["env"]["PIP_EXTRA_INDEX_URL"].endswith("/whl/cpu")
