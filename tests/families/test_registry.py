"""The registry finds a family by the name in a checkpoint, and exposes its settings as engine settings."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from itertools import combinations
from pathlib import Path

import pytest
from typer.testing import CliRunner

from s1_mini import EngineConfig
from s1_mini.cli.app import app
from s1_mini.config import LoadSettings
from s1_mini.exceptions import CheckpointMismatchError
from s1_mini.families.find import Checkpoint
from s1_mini.families.registry import FAMILIES, family_of, family_settings, find_family, get_family
from s1_mini.variables import known_variables


def test_settings_and_checkpoints_are_read_without_torch_and_some_without_numpy() -> None:
    code = (
        "import s1_mini.config, s1_mini.cluster, s1_mini.packaging.verify, sys\n"
        "assert not {'torch', 'numpy'} & {*sys.modules}\n"
        "import s1_mini.corpus.job\n"
        "assert 'torch' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_the_settings_of_a_family_are_the_engines_by_keyword_and_by_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("S1_MINI_HEADS", "full")

    config = EngineConfig(repetition_mode="fixed")

    assert all(isinstance(config, settings) for settings in family_settings())
    assert (config.heads, config.repetition_mode) == ("full", "fixed")
    assert "S1_MINI_REPETITION_MODE" in known_variables("S1_MINI_")


def test_no_setting_is_given_two_meanings() -> None:
    owners = [LoadSettings, *family_settings()]
    own = set(EngineConfig.__annotations__)

    for one, other in combinations(owners, 2):
        assert not set(one.model_fields) & set(other.model_fields)
    assert not own & {name for owner in owners for name in owner.model_fields}


def test_a_checkpoint_is_of_the_family_that_it_names(tiny: Path) -> None:
    assert type(family_of(tiny)) is type(get_family("dual_ar")) is type(find_family({}))


@pytest.mark.parametrize("name", ["llama", 7, None, ["dual_ar"], "x" * 10_000])
def test_a_foreign_checkpoint_is_refused_with_the_known_families(name: object) -> None:
    with pytest.raises(CheckpointMismatchError, match="model_type must be one of") as caught:
        find_family({"model_type": name})

    assert all(known in str(caught.value) for known in FAMILIES)
    assert len(str(caught.value)) < 200


def test_a_config_without_model_type_that_is_not_s1s_is_refused_with_its_fields_and_the_families(
    published_cascade: Path, tmp_path: Path
) -> None:
    directory = shutil.copytree(published_cascade, tmp_path / "bark")
    config = json.loads((directory / "config.json").read_text())
    del config["model_type"]
    (directory / "config.json").write_text(json.dumps(config))

    for read in (family_of, lambda path: Checkpoint(path).check_files()):
        with pytest.raises(CheckpointMismatchError) as caught:
            read(directory)

        assert "config.json has no model_type" in str(caught.value)
        assert "'coarse_acoustics_config', 'codec_config'" in str(caught.value)
        assert "Set model_type to one of dual_ar, bark, speecht5" in str(caught.value)


def test_a_random_checkpoint_needs_a_known_family_and_size(tmp_path: Path) -> None:
    run = CliRunner()
    made = run.invoke(app, ["random-checkpoint", str(tmp_path / "a"), "--family", "s1", "--size", "tiny"])
    foreign = run.invoke(app, ["random-checkpoint", str(tmp_path / "b"), "--family", "bass"])
    huge = run.invoke(app, ["random-checkpoint", str(tmp_path / "c"), "--size", "huge"])

    assert made.exit_code == 0
    assert "must be one of s1, cascade, mel, qwen3, audio8, not 'bass'" in str(foreign.exception)
    assert "'huge' is not a size of S1-mini (tiny: under a megabyte" in str(huge.exception)
