"""Every setting is shown with what it is and what it means, on the page as in the terminal."""

from __future__ import annotations

from pathlib import Path

import pytest

from s1_mini.cli.app import app
from s1_mini.cli.settings import groups
from s1_mini.exceptions import ConfigurationError

PAGE = Path(__file__).parents[2] / "docs" / "settings.md"


def shown(capsys: pytest.CaptureFixture[str], *options: str) -> str:
    app(["settings", *options], standalone_mode=False)
    return capsys.readouterr().out


def test_the_page_is_what_the_command_prints(capsys: pytest.CaptureFixture[str]) -> None:
    assert PAGE.read_text(encoding="utf-8").endswith("\n\n" + shown(capsys, "--markdown").rstrip() + "\n")


def test_every_setting_says_what_it_means() -> None:
    for _, group in groups():
        assert all(line.meaning and not line.meaning.startswith("(") for line in group)
        assert not any(line.is_set for line in group)


def test_what_a_variable_changes_is_shown_and_a_secret_is_not(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "160")
    monkeypatch.setenv("S1_MINI_BATCH_SIZE", "7")
    monkeypatch.setenv("S1_MINI_SERVER_API_KEY", "open sesame")

    text = shown(capsys, "--changed")

    assert "S1_MINI_BATCH_SIZE" in text
    assert " 7 " in text
    assert "API_KEY" in text
    assert "sesame" not in text
    assert "S1_MINI_DEVICE" not in text


def test_a_value_that_is_not_allowed_is_told_by_its_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("S1_MINI_CHUNK_LENGTH", "7")

    with pytest.raises(ConfigurationError, match="chunk_length"):
        list(groups())
