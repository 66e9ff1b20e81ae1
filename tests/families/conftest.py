"""Random cascades and transformers' output for them, created once per process."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import torch

from s1_mini.codecs.encodec.weights import TINY
from s1_mini.families.base import Placement
from s1_mini.families.cascade.loaded import LoadedCascade
from s1_mini.families.cascade.random import recipe, write_random_checkpoint
from s1_mini.families.cascade.settings import CascadeSettings

if TYPE_CHECKING:
    from reference_bark import Reference

CPU = Placement(torch.device("cpu"), torch.float32, torch.float32)
SMALL = recipe(1, 2, 64, TINY)  # a layer for each model; the other cascade has several


@pytest.fixture(scope="session")
def cascade(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A random cascade in the compact form."""
    directory = tmp_path_factory.mktemp("cascade") / "tiny"
    write_random_checkpoint(directory, SMALL)
    return directory


@pytest.fixture(scope="session")
def published_cascade(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same cascade in the form that transformers publishes."""
    directory = tmp_path_factory.mktemp("cascade_published") / "tiny"
    write_random_checkpoint(directory, SMALL, form="published")
    return directory


@pytest.fixture(scope="session")
def other_cascade(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A cascade of another size, seed and kind: its linear layers have biases."""
    directory = tmp_path_factory.mktemp("cascade_other") / "other"
    other = recipe(3, 4, 32, TINY)
    for name in ("semantic", "coarse_acoustics", "fine_acoustics"):
        other.config[f"{name}_config"]["bias"] = True
    write_random_checkpoint(directory, other, form="published", seed=7)
    return directory


@pytest.fixture(scope="session")
def loaded_cascade(cascade: Path) -> LoadedCascade:
    """The random cascade, loaded."""
    return LoadedCascade(cascade, CPU, CascadeSettings())


@pytest.fixture(scope="session")
def bark(published_cascade: Path) -> Reference:
    """transformers' model of the random cascade."""
    from reference_bark import Reference  # transformers takes seconds to import, and not all tests here need it

    return Reference(published_cascade)


@pytest.fixture(scope="session")
def other_bark(other_cascade: Path) -> Reference:
    """transformers' model of the other cascade."""
    from reference_bark import Reference

    return Reference(other_cascade)
