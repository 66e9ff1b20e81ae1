"""The templates of every stage, synthesised once; tests that need the CDK or Node are skipped without them.

`python scripts/test.py --infra` installs the CDK into a separate environment, without the engine.
"""

from __future__ import annotations

import importlib.util
import os
import shutil
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

INFRA = Path(__file__).parents[2] / "infra"
HAS_CDK = all(importlib.util.find_spec(name) for name in ("aws_cdk", "cdk_nag", "cfnlint", "cfn_guard_rs"))
HAS_NODE = shutil.which("node") is not None
Templates = dict[str, dict[str, Any]]

# These compare stages and manifests with the engine, and test no template.
collect_ignore = [] if importlib.util.find_spec("s1_mini") else ["test_stages.py", "test_manifests.py"]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skip tests that need the CDK where it is not installed."""
    reason = why_skipped(has_cdk=HAS_CDK, has_node=HAS_NODE)
    for item in items:
        if item.get_closest_marker("infra") and reason:
            item.add_marker(pytest.mark.skip(reason=reason))


def why_skipped(*, has_cdk: bool, has_node: bool) -> str:
    """Return what is missing and the command to run; empty if nothing is."""
    if not has_node:
        return "needs Node 20 or newer on the path, then: python scripts/test.py --infra"
    return "" if has_cdk else "needs the CDK: python scripts/test.py --infra"


@pytest.fixture(scope="session", autouse=True)
def _infra_on_the_path() -> Iterator[None]:
    """Put `infra` on `sys.path`, as `python infra/app.py` does, to import `speech`."""
    sys.path.insert(0, str(INFRA))
    os.environ["JSII_SILENCE_WARNING_END_OF_LIFE_NODE_VERSION"] = "20"
    yield
    sys.path.remove(str(INFRA))


@pytest.fixture(scope="session")
def assembly(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with all stages of the one-endpoint app; a cdk-nag finding would have failed the synthesis."""
    from speech.compose import compose_speech
    from speech.stages import STAGES, read_stage
    from speech.toolchain import new_app

    app = new_app(outdir=str(tmp_path_factory.mktemp("speech")))
    for name in STAGES:
        compose_speech(app, read_stage(name))
    return Path(app.synth().directory)


@pytest.fixture(scope="session")
def shared_assembly(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with the app of many models on shared instances."""
    from speech.compose import compose_components
    from speech.stages import read_stage
    from speech.toolchain import new_app

    app = new_app(outdir=str(tmp_path_factory.mktemp("components")))
    compose_components(app, read_stage("prod"))
    return Path(app.synth().directory)


@pytest.fixture(scope="session")
def template(assembly: Path, shared_assembly: Path) -> Callable[[str], Any]:
    """Return the template of a stack by its name, for assertions."""
    from aws_cdk.assertions import Template

    def find(name: str) -> Any:
        for directory in (assembly, shared_assembly):
            file = directory / f"s1-mini-{name}.template.json"
            if file.exists():
                return Template.from_string(file.read_text(encoding="utf-8"))
        raise KeyError(name)

    return find


@pytest.fixture
def synthesised() -> Callable[..., Any]:
    """Return the real-time template of a production stage with some fields changed, without cdk-nag."""
    from aws_cdk.assertions import Template
    from speech.foundation.stack import FoundationStack
    from speech.realtime.stack import RealtimeStack
    from speech.stages import read_stage
    from speech.toolchain import environment_of, new_app

    def make(**changes: Any) -> Any:
        stage = replace(read_stage("prod"), **changes)
        app, env = new_app(check=False), environment_of(stage)
        foundation = FoundationStack(app, "foundation", stage=stage, env=env)
        return Template.from_stack(RealtimeStack(app, "realtime", stage=stage, foundation=foundation, env=env))

    return make
