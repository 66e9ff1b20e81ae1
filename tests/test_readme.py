"""The README is true: its code blocks run, its links lead somewhere."""

from __future__ import annotations

import re
import shlex
import shutil
import sys
from pathlib import Path

import numpy as np
import pytest
import soundfile

from s1_mini.cli.app import run

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text(encoding="utf-8")


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", README, re.DOTALL | re.MULTILINE)


@pytest.fixture
def desk(tiny: Path, tone: np.ndarray, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with what the README supposes: a checkpoint and a recording."""
    shutil.copytree(tiny, tmp_path / "openaudio-s1-mini")
    soundfile.write(tmp_path / "me.wav", tone, 44_100)
    shutil.copytree(ROOT / "tests" / "assets", tmp_path / "tests" / "assets")
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.usefixtures("desk")
@pytest.mark.parametrize("code", blocks("python"))
def test_python_blocks_run(code: str, capsys: pytest.CaptureFixture[str]) -> None:
    exec(compile(code, "README.md", "exec"), {})

    assert "real-time factor" in capsys.readouterr().out


def commands() -> list[str]:
    return [line.removeprefix("$ ") for block in blocks("console") for line in block.splitlines() if line[:2] == "$ "]


def test_commands_run_in_order(
    desk: Path, monkeypatch: pytest.MonkeyPatch, capfdbinary: pytest.CaptureFixture[bytes]
) -> None:
    for command in commands():
        words, _, target = command.partition(" > ")
        monkeypatch.setattr(sys, "argv", shlex.split(words))

        assert run() == 0, command

        if target:
            (desk / target).write_bytes(capfdbinary.readouterr().out)

    for sound in ("morning.wav", "clara.wav", "mine.mp3", "another.wav", "noise.wav"):
        assert soundfile.info(desk / sound).frames > 0
    assert (desk / "stream.wav").read_bytes().startswith(b"RIFF")
    assert (desk / "compact" / "codec.safetensors").exists()


@pytest.mark.parametrize(
    "page",
    [
        "README.md",
        "CONTRIBUTING.md",
        "CHANGELOG.md",
        "docs/benchmark.md",
        "docs/complexity.md",
        "docs/deploy.md",
        "docs/endpoint.md",
        "docs/package.md",
        "docs/http.md",
        "docs/page.md",
        "docs/performance.md",
        "docs/voice.md",
        "docs/voices.md",
        "training/README.md",
    ],
)
def test_links_to_files_lead_somewhere(page: str) -> None:
    targets = re.findall(r"\]\((?!https?:)([^)#]+)\)", (ROOT / page).read_text(encoding="utf-8"))

    assert [target for target in targets if not (ROOT / page).parent.joinpath(target).exists()] == []


def test_the_two_commands_of_the_first_screen_exist() -> None:
    first_screen = blocks("")[0]

    assert re.findall(r"python (\S+)", first_screen) == ["scripts/demo.py", "scripts/test.py"]
    assert all((ROOT / script).exists() for script in ("scripts/demo.py", "scripts/test.py", ".ci/run"))
