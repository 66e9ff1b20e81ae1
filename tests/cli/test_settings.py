"""Every setting is listed with its value and its meaning, in the docs and in the terminal."""

from __future__ import annotations

from pathlib import Path

import pytest

from s1_mini.cli.app import app
from s1_mini.cli.settings import groups
from s1_mini.variables import OWNERS, known_variables

PAGES = [Path(__file__).parents[2] / "docs" / name for name in ("settings.md", "settings_server.md")]


def shown(capsys: pytest.CaptureFixture[str], *options: str) -> str:
    app(["settings", *options], standalone_mode=False)
    return capsys.readouterr().out


def test_the_pages_tables_are_what_the_command_prints(capsys: pytest.CaptureFixture[str]) -> None:
    tables = ["".join(page.read_text(encoding="utf-8").partition("\n## ")[1:]) for page in PAGES]

    assert "".join(tables).strip() == shown(capsys, "--markdown").strip()


def test_every_setting_says_what_it_means() -> None:
    for _, group in groups():
        assert all(line.meaning and not line.meaning.startswith("(") for line in group)
        assert not any(line.is_set for line in group)


def test_values_from_variables_are_shown_and_secrets_are_not(
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


def test_unchanged_settings_are_reported_as_such(capsys: pytest.CaptureFixture[str]) -> None:
    assert shown(capsys, "--changed") == "all settings have their default values\n"


def test_every_setting_is_a_known_variable() -> None:
    names = {variable for _, group in groups() for line in group for variable in line.variables}
    known = {prefix: set(known_variables(prefix)) for prefix in OWNERS}

    assert set().union(*known.values()) - known["S1_MINI_AWS_"] == names
    assert all(name.startswith(prefix) for prefix in OWNERS for name in known[prefix])
    assert "S1_MINI_AWS_REGION" in known["S1_MINI_AWS_"]


@pytest.mark.parametrize(
    ("wrong", "meant"),
    [
        ("S1_MINI_PORT", "S1_MINI_SERVER_PORT"),
        ("S1_MINI_HOST", "S1_MINI_SERVER_HOST"),
        ("S1_MINI_API_KEY", "S1_MINI_SERVER_API_KEY"),
        ("S1_MINI_MAX_SESSIONS", "S1_MINI_SERVER_SAGEMAKER_MAX_SESSIONS"),
        ("S1_MINI_REGION", "S1_MINI_AWS_REGION"),
        ("S1_MINI_SERVER_DEVICE", "S1_MINI_DEVICE"),
        ("S1_MINI_SERVER_SAGEMAKER_ASYNC", "S1_MINI_SERVER_SAGEMAKER_MAX_ASYNC"),
        ("S1_MINI_AWS_ROLLE_ARN", "S1_MINI_AWS_ROLE"),
        ("S1_MINI_COLOUR", None),
    ],
)
def test_an_unknown_variable_is_reported_once_with_the_nearest_known_one(
    wrong: str, meant: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(wrong, "1")

    with pytest.warns(UserWarning, match="is not a setting of s1_mini") as output:
        list(groups())

    suggestion = f"; did you mean {meant}?" if meant else ""
    assert [str(one.message) for one in output] == [f"{wrong} is not a setting of s1_mini{suggestion}"]


def test_a_known_variable_is_not_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("S1_MINI_SERVER_SAGEMAKER_MAX_ASYNC", "3")  # filterwarnings: a warning would be an error
    monkeypatch.setenv("S1_MINI_AWS_REGION", "eu-west-1")

    list(groups())
