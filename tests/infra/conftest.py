"""The templates of every stage, synthesised once; tests that need the CDK or Node are skipped without them.

`python scripts/test.py --infra` installs the CDK into a separate environment, without the engine.
"""

from __future__ import annotations

import importlib.util
import json
import os
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
HAS_CDK = all(importlib.util.find_spec(name) for name in ("aws_cdk", "cdk_nag", "cfnlint", "cfn_guard_rs"))
HAS_NODE = shutil.which("node") is not None
Template = dict[str, Any]

# These compare stages and manifests with the engine, and test no template.
collect_ignore = [] if importlib.util.find_spec("torch") else ["test_stages.py", "test_manifests.py"]
sys.path[:0] = [str(ROOT / "infra"), str(ROOT / "src")]
os.environ["JSII_SILENCE_WARNING_END_OF_LIFE_NODE_VERSION"] = "20"


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skip tests that need the CDK where it is not installed."""
    reason = "" if HAS_CDK else "needs the CDK: python scripts/test.py --infra"
    if not HAS_NODE:
        reason = "needs Node 22 or newer on the path, then: python scripts/test.py --infra"
    for item in items:
        if item.get_closest_marker("infra") and reason:
            item.add_marker(pytest.mark.skip(reason=reason))


@pytest.fixture
def write(tmp_path: Path) -> Callable[..., Any]:
    """Return a stage of the defaults and a table."""
    from speech.stages import STAGES_FILE, read_stage

    def _write(table: str, stage: str = "prod") -> Any:
        defaults = STAGES_FILE.read_text(encoding="utf-8").partition("# One endpoint")[0]
        file = tmp_path / "stages.toml"
        file.write_text(f"{defaults}\n[{stage}]\n{table}\n[{stage}.endpoints.realtime]\n", encoding="utf-8")
        return read_stage(stage, file)

    return _write


@pytest.fixture(scope="session")
def assembly(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with the templates of all stages; a cdk-nag finding would have failed the synthesis."""
    from speech.stages import read_stage
    from speech.toolchain import compose, new_app

    app = new_app(outdir=str(tmp_path_factory.mktemp("stages")))
    for name in ("dev", "staging", "prod", "shared"):
        compose(app, read_stage(name))
    return Path(app.synth().directory)


@pytest.fixture(scope="session")
def template(assembly: Path) -> Callable[[str], Template]:
    """Return the template of a stack by its name."""

    def find(name: str) -> Template:
        return json.loads((assembly / f"s1-mini-{name}.template.json").read_text(encoding="utf-8"))

    return find
