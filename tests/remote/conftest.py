"""Random checkpoints of other families than S1."""

from __future__ import annotations

from pathlib import Path

import pytest

from s1_mini.families.registry import get_family
from tests.families.conftest import cascade as cascade  # noqa: PLC0414 - a fixture of these tests, too


@pytest.fixture(scope="session")
def mel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A random mel model."""
    directory = tmp_path_factory.mktemp("mel") / "tiny"
    get_family("mel").write_random(directory, size="tiny", form="compact", seed=0)
    return directory
