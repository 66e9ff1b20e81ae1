"""What a release promises, read from its own file: no secret, few rights, named things only, all checked first."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).parents[1]
TEXT = (ROOT / ".github" / "workflows" / "release.yml").read_text(encoding="utf-8")
WORKFLOW = yaml.safe_load(TEXT)
JOBS: dict[str, Any] = WORKFLOW["jobs"]


def commands(job: str) -> str:
    return "\n".join(step["run"] for step in JOBS[job]["steps"] if "run" in step)


def test_only_a_tag_releases() -> None:
    assert WORKFLOW[True] == {"push": {"tags": ["v*"]}}  # YAML 1.1 reads `on` as true


def test_no_secret_is_kept_and_a_job_has_the_rights_that_it_needs() -> None:
    assert "secrets." not in TEXT
    assert WORKFLOW["permissions"] == {"contents": "read"}
    writes = {
        name: {it for it, right in job.get("permissions", {}).items() if right == "write"} for name, job in JOBS.items()
    }
    assert writes == {
        "build": set(),
        "publish": {"id-token", "attestations"},
        "image": {"id-token", "attestations", "packages"},
    }


def test_pypi_trusts_the_job_that_publishes_in_an_environment_that_people_guard() -> None:
    assert JOBS["publish"]["environment"]["name"] == "pypi"
    assert JOBS["publish"]["needs"] == "build"
    assert "twine upload --non-interactive --attestations" in commands("publish")
    assert "pypi-attestations sign" in commands("publish")
    assert "password" not in commands("publish")


def test_actions_are_github_s_own_and_named_by_their_commit() -> None:
    uses = re.findall(r"uses: (.+)", TEXT)

    assert [it for it in uses if not re.fullmatch(r"actions/[a-z-]+@[0-9a-f]{40} # v\d+\.\d+\.\d+", it)] == []
    assert len({it.partition("@")[0] for it in uses}) == len(set(uses)), "one version of each"


def test_what_publishes_is_locked() -> None:
    for job in ("build", "publish"):
        (install,) = re.findall(r"(?m)^pip install.*", commands(job))
        assert install == "pip install --require-hashes --requirement requirements-release.lock.txt"


def test_nothing_is_published_before_it_was_built_checked_and_heard() -> None:
    checks = commands("build")

    assert "twine check --strict" in checks
    assert "CHANGELOG.md" in checks
    assert 's1-mini" say' in checks
    assert all(job["needs"] == "build" for name, job in JOBS.items() if name != "build")


def test_everything_that_is_published_says_where_it_comes_from() -> None:
    attested = {
        name
        for name, job in JOBS.items()
        if any(step.get("uses", "").startswith("actions/attest-build-provenance@") for step in job["steps"])
    }

    assert attested == {"publish", "image"}


def test_the_base_of_the_image_is_the_recipe_s_named_by_its_digest() -> None:
    recipe = (ROOT / "sagemaker" / "Dockerfile").read_text(encoding="utf-8")
    steps = commands("image")

    assert f"ARG BASE={WORKFLOW['env']['BASE']}\n" in recipe
    assert 'imagetools inspect "$BASE"' in steps
    assert '--build-arg "BASE=$BASE@$DIGEST"' in steps
    assert "org.opencontainers.image.base.digest=$DIGEST" in steps


def test_jobs_end_in_time_and_keep_no_credentials() -> None:
    for job in JOBS.values():
        assert 0 < job["timeout-minutes"] <= 60
        for step in job["steps"]:
            if step.get("uses", "").startswith("actions/checkout@"):
                assert step["with"]["persist-credentials"] is False
