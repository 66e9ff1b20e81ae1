"""CI and releases: tested systems, release checks, and permissions of every job."""

from __future__ import annotations

import configparser
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).parents[1]
COMMAND = "python scripts/test.py"
NO_JOB = {"slow", "gpu"}  # `slow` is part of the plain command; hosted runners have no GPU
MATRIX = re.compile(r"\$\{\{ matrix\.(\w+) \}\}")

TEXTS = {
    name: (ROOT / ".github" / "workflows" / f"{name}.yml").read_text(encoding="utf-8")
    for name in ("ci", "release", "docs")
}
CI, RELEASE, DOCS = (yaml.safe_load(text) for text in TEXTS.values())


def runs(job: dict[str, Any]) -> Iterator[tuple[str, str, list[str]]]:
    """Yield system, Python and commands of each row of a job's matrix."""
    matrix = job.get("strategy", {}).get("matrix", {})
    for row in matrix.get("include") or [{name: each} for name, values in matrix.items() for each in values] or [{}]:

        def fill(text: str, row: dict[str, str] = row) -> str:
            return MATRIX.sub(lambda found: row[found[1]], text)

        (python,) = [step["with"]["python-version"] for step in steps(job, "actions/setup-python")]
        yield fill(job["runs-on"]), fill(python), [fill(step["run"]) for step in job["steps"] if "run" in step]


def steps(job: dict[str, Any], action: str) -> list[dict[str, Any]]:
    return [step for step in job["steps"] if step.get("uses", "").partition("@")[0] == action]


def commands(job: str) -> str:
    return "\n".join(step["run"] for step in RELEASE["jobs"][job]["steps"] if "run" in step)


def test_each_mark_that_the_plain_command_leaves_out_has_a_job_and_each_job_a_mark() -> None:
    config = configparser.ConfigParser()
    config.read(ROOT / "setup.cfg", encoding="utf-8")
    marks = {line.partition(":")[0] for line in config["tool:pytest"]["markers"].strip().splitlines()}
    given = {command for job in CI["jobs"].values() for _, _, each in runs(job) for command in each} - {COMMAND}
    (marked,) = re.findall(r'^MARKED = "(.+?)"', (ROOT / "scripts" / "test.py").read_text(encoding="utf-8"), re.M)

    assert {command.split()[-1].removeprefix("--") for command in given} == marks - NO_JOB
    assert {*marked.split()} == marks - {"slow", "infra"}


def test_no_secret_is_kept_and_a_job_has_the_rights_that_it_needs() -> None:
    of_release = {"publish": {"id-token", "attestations"}, "image": {"id-token", "attestations", "packages"}}
    of_docs = {"publish": {"id-token", "pages"}}

    for workflow, text, rights in zip((CI, RELEASE, DOCS), TEXTS.values(), ({}, of_release, of_docs), strict=True):
        assert "secrets." not in text
        assert "pull_request_target" not in text
        assert workflow["permissions"] == {"contents": "read"}
        for name, job in workflow["jobs"].items():
            assert {it for it, right in job.get("permissions", {}).items() if right == "write"} == rights.get(
                name, set()
            )
            assert 0 < job["timeout-minutes"] <= 60
            assert all(step["with"]["persist-credentials"] is False for step in steps(job, "actions/checkout"))


def test_actions_are_github_s_own_and_those_with_rights_are_named_by_their_commit() -> None:
    commit = r"[0-9a-f]{40} # v\d+\.\d+\.\d+"
    for name, version in (("ci", r"v\d+"), ("release", commit), ("docs", commit)):
        uses = re.findall(r"uses: (.+)", TEXTS[name])
        assert [it for it in uses if not re.fullmatch(rf"actions/[a-z-]+@{version}", it)] == []
        assert len({it.partition("@")[0] for it in uses}) == len(set(uses)), "one version of each"


def test_only_a_tag_releases_after_all_builds_and_checks() -> None:
    checks = commands("build")

    assert RELEASE[True] == {"push": {"tags": ["v*"]}}  # YAML 1.1 reads `on` as true
    assert all(check in checks for check in ("twine check --strict", "CHANGELOG.md", 's1-mini" say'))
    assert {name: job.get("needs") for name, job in RELEASE["jobs"].items()} == {
        "build": None,
        "publish": "build",
        "image": "build",
    }
    for job in ("build", "publish"):
        (install,) = re.findall(r"(?m)^pip install.*", commands(job))
        assert install == "pip install --require-hashes --requirement requirements-release.lock.txt"


def test_each_image_of_a_release_has_a_list_of_its_packages_and_runs_on_its_own_processor() -> None:
    image = RELEASE["jobs"]["image"]

    (attest,) = steps(image, "actions/attest-sbom")
    assert attest["with"]["sbom-path"] == "${{ runner.temp }}/sbom.json"
    assert '--output-file "$RUNNER_TEMP/sbom.json"' in commands("image")
    for row in image["strategy"]["matrix"]["include"]:
        assert row["tag"].endswith("arm64") == row["platform"].endswith("arm64") == row["runner"].endswith("arm")


def test_each_python_that_the_package_names_is_checked() -> None:
    config = configparser.ConfigParser()
    config.read(ROOT / "setup.cfg", encoding="utf-8")
    named = re.findall(r"Python :: (3\.\d+)", config["metadata"]["classifiers"])

    assert {python for _, python, each in runs(CI["jobs"]["check"]) if each == [COMMAND]} == {*named}
