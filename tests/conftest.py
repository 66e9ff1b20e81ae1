"""Shared fixtures: random tiny checkpoints, the reference implementation's oracle, and one started engine."""

from __future__ import annotations

import gc
import random
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import botocore.loaders
import numpy as np
import pytest
import torch
from hypothesis import settings

from deployments import REGION
from own_folder import python_with
from s1_mini import EngineConfig, ProductionTTSEngine
from s1_mini.audio import container
from s1_mini.families.s1.random import RECIPES, Recipe, write_random_checkpoint
from voice_formats import BOOKS

# Threads for what tests compute themselves (engines choose their own): tiny models are twice as slow on two.
torch.set_num_threads(1)
settings.register_profile("s1_mini", deadline=None)  # no test depends on speed
settings.load_profile("s1_mini")
gc.disable()  # disabled during collection: imported objects stay alive, and each collection would scan them again
_unfreeze, _unfrozen = gc.unfreeze, list[bool]()  # has an element after a call of `gc.unfreeze`
gc.unfreeze = lambda: (_unfrozen.append(True), _unfreeze())[1]  # `gc.get_freeze_count` takes a fifth of a second
LOADER = botocore.loaders.Loader()
ASSETS = Path(__file__).parent / "assets"
# For tests that accept any noise: fewer codebooks, layers and strides save a third of the time of a frame.
TINY = RECIPES["tiny"]
NOISE = Recipe(
    TINY.model | {"num_codebooks": BOOKS, "n_fast_layer": 1},
    TINY.codec
    | {"n_codebooks": BOOKS - 1, "q_n_layer": 1, "encoder_rates": [16, 32], "decoder_rates": [32, 16]}
    | {"encoder_transformer_layers": [0, 1]},
    num_semantic=64,
)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Run files with a slow test first: a long file at the end would leave the other cores idle."""
    slow = {item.path for item in items if item.get_closest_marker("slow")}
    items.sort(key=lambda item: item.path not in slow)


def pytest_make_parametrize_id(val: object) -> str | None:
    """Shorten the names of tests with long parameters."""
    text = str(val)
    return f"{text[:40]}..{len(text)}" if isinstance(val, (str, dict, list, tuple)) and len(text) > 80 else None


def pytest_collection_finish() -> None:
    """Enable the garbage collector for objects of the tests themselves."""
    gc.freeze()
    gc.enable()


@pytest.hookimpl(trylast=True)
def pytest_runtest_teardown() -> None:
    """Freeze again after a test of code that unfreezes: each later `gc.collect` would scan a million objects."""
    if _unfrozen:
        _unfrozen.clear()
        gc.freeze()


@pytest.fixture(autouse=True)
def _clean_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    """Remove the machine's own `S1_MINI_*` variables."""
    import os

    for name in list(os.environ):
        if name.startswith("S1_MINI_"):
            monkeypatch.delenv(name)


@pytest.fixture(autouse=True)
def _same_seeds_each_run(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Draw the seeds of requests without one from the test's name: a random checkpoint ends some speeches early."""
    draws = random.Random(request.node.nodeid)
    monkeypatch.setattr("s1_mini.runtime.synthesizer.secrets", SimpleNamespace(randbits=draws.getrandbits))


@pytest.fixture(scope="session")
def oracle() -> Path:
    """Directory of the original's tiny checkpoint; `oracle.pt` in it holds the original's output."""
    return ASSETS / "s1_tiny"


@pytest.fixture(scope="session")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A random checkpoint in the compact form."""
    directory = tmp_path_factory.mktemp("compact") / "tiny"
    write_random_checkpoint(directory, NOISE)
    return directory


@pytest.fixture(scope="session")
def published(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same random weights in the published form."""
    directory = tmp_path_factory.mktemp("published") / "tiny"
    write_random_checkpoint(directory, NOISE, form="published")
    return directory


@pytest.fixture(scope="session")
def engine(tiny: Path) -> Iterator[ProductionTTSEngine]:
    """A started engine with random weights."""
    with ProductionTTSEngine(EngineConfig(checkpoint_path=tiny, device="cpu")) as engine:
        yield engine


@pytest.fixture(scope="session")
def tone() -> np.ndarray:
    """A second of a voice-like wave at 44.1 kHz: float32 [samples]."""
    time = np.arange(44_100) / 44_100
    wave = sum(np.sin(2 * np.pi * 120 * k * time) / k for k in range(1, 12))
    return (0.2 * wave * (1 + np.sin(2 * np.pi * 4 * time))).astype(np.float32)


@pytest.fixture
def no_grad() -> Iterator[None]:
    """Run a test without gradients, as the engine runs models."""
    with torch.inference_mode():
        yield


@pytest.fixture(scope="session")
def sdk_python(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The Python of an environment with the extra `sdk`."""
    return python_with(tmp_path_factory.mktemp("sdk"), "--requirement", "requirements-sdk.txt")


@pytest.fixture
def account(monkeypatch: pytest.MonkeyPatch, tmp_path: object) -> None:
    """Set placeholder credentials and a region; botocore reads its service models once."""
    monkeypatch.setattr("botocore.session.create_loader", lambda *_: LOADER)
    for name in ("AWS_PROFILE", "AWS_SESSION_TOKEN", "AWS_ENDPOINT_URL"):
        monkeypatch.delenv(name, raising=False)
    for name, value in {
        "AWS_ACCESS_KEY_ID": "testing",
        "AWS_SECRET_ACCESS_KEY": "testing",
        "AWS_DEFAULT_REGION": REGION,
        "AWS_CONFIG_FILE": f"{tmp_path}/config",
        "AWS_SHARED_CREDENTIALS_FILE": f"{tmp_path}/credentials",
        "AWS_EC2_METADATA_DISABLED": "true",
        "AWS_MAX_ATTEMPTS": "1",
    }.items():
        monkeypatch.setenv(name, value)


@pytest.fixture
def without_av(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Take the package of the extra `av` away."""
    monkeypatch.setattr("s1_mini.extras.find_spec", lambda name: None if name == "av" else object())
    container.lack_of.cache_clear()
    yield
    container.lack_of.cache_clear()
