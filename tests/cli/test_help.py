"""Help, version and shell completion are fast: commands import heavy modules only when they need them."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import get_args

import pytest

from commands import ENVIRONMENT
from s1_mini import AudioFormat
from s1_mini.cli.verb import DEVICES, FORMATS, PRECISIONS
from s1_mini.config import EngineConfig, Precision

HEAVY = {"boto3", "botocore", "fastapi", "numpy", "pydantic", "rich", "safetensors", "soundfile", "torch", "uvicorn"}

# Runs --help for every command and subcommand, and records the imported modules after each.
ASK_ALL = """
import contextlib, io, json, sys
from typer.main import get_command
from s1_mini.cli.app import app, run

def paths(command, path):
    inner = getattr(command, "commands", {})
    yield path, not inner
    for name in sorted(inner, key=lambda name: name == "endpoint"):  # its options are those of a pydantic model
        yield from paths(inner[name], [*path, name])

loaded = {}
for path, is_verb in paths(get_command(app), []):
    sys.argv = ["s1-mini", *path, "--help"]
    with contextlib.redirect_stdout(io.StringIO()) as said:
        assert run() == 0
    assert "Usage: s1-mini" in said.getvalue()
    assert ("Example:" in said.getvalue()) == is_verb, path
    assert "..." not in said.getvalue().replace("COMMAND [ARGS]...", ""), "a summary is cut"
    assert "Annotated" not in said.getvalue(), "a type is shown as Python writes it"
    assert "{" not in said.getvalue().partition("\\n")[0]
    loaded[" ".join(path)] = sorted(set(sys.modules))
print(json.dumps(loaded))
"""


def python(*arguments: str, **environment: str) -> str:
    command = [sys.executable, *arguments]
    result = subprocess.run(command, capture_output=True, text=True, env=ENVIRONMENT | environment, check=False)
    assert result.returncode == 0, result.stderr
    return result.stdout


def test_help_of_every_command_loads_nothing_heavy() -> None:
    loaded = json.loads(python("-c", ASK_ALL))

    assert {"", "say", "package", "endpoint create", "voices add"} <= set(loaded)
    allowed = {verb: {"pydantic"} if verb.startswith("endpoint") else set() for verb in loaded}
    assert {verb: found for verb, modules in loaded.items() if (found := HEAVY & set(modules) - allowed[verb])} == {}


@pytest.mark.parametrize("asked", [["--version"], []])
def test_neither_the_version_nor_a_call_without_a_command_loads_anything_heavy(asked: list[str]) -> None:
    code = f"import sys; sys.argv = ['s1-mini', *{asked}]; from s1_mini.cli.app import run; run(); print(*sys.modules)"

    assert not HEAVY & set(python("-c", code).split("\n")[-2].split())


# Each call is invalid, and is refused before torch is imported.
WRONG = """
import contextlib, io, json, os, sys
from s1_mini.cli.app import run

def told(*words):
    sys.argv = ["s1-mini", *words]
    with contextlib.redirect_stderr(io.StringIO()) as said:
        assert run() == 1, words
    assert "torch" not in sys.modules, words
    return said.getvalue()

os.environ["S1_MINI_CHUNK_LENGTH"] = "7"
calls = (["say", "Hi."], ["serve"], ["voices", "list"], ["voices", "add", "me", "a.wav", "--text", "A."], ["bench"])
calls += (["profile"], ["verify", "--checkpoint", "a", "--oracle", "b"])
print(json.dumps([told(*call) for call in calls]))
"""


def test_an_invalid_setting_is_reported_by_its_variable_before_torch_is_loaded() -> None:
    expected = "s1-mini: S1_MINI_CHUNK_LENGTH='7': input should be greater than or equal to 50\n"

    assert set(json.loads(python("-c", WRONG))) == {expected}


def test_a_server_starts_the_process_of_its_engine_before_it_imports_the_web_framework() -> None:
    code = """
import sys
from s1_mini.cli.app import run
from s1_mini.remote.engine_process import EngineProcess
EngineProcess.prepare = lambda _: sys.exit(print(*sys.modules))
sys.argv = ["s1-mini", "serve", "--port", "0"]
run()
"""
    loaded = python("-c", code, S1_MINI_SERVER_ENGINE_PROCESS="on").split()

    assert "s1_mini.config" in loaded
    assert not {"fastapi", "torch", "uvicorn"} & set(loaded)


def test_voices_are_listed_described_and_refused_without_torch(tmp_path: Path) -> None:
    (tmp_path / "here").mkdir()
    code = """
import sys
from s1_mini.cli.app import run
for words in ("list", "describe clara", "delete nobody", "delete clara"):
    sys.argv = ["s1-mini", "voices", *words.split(), "--voices-path", "here"]
    run()
assert "torch" not in sys.modules
"""
    result = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, cwd=tmp_path, env=ENVIRONMENT, check=False
    )

    assert result.returncode == 0, result.stderr
    assert b"clara" in result.stdout


ASKED = {
    "bash": {"COMP_WORDS": "s1-mini voices li", "COMP_CWORD": "2"},
    "zsh": {"_TYPER_COMPLETE_ARGS": "s1-mini voices li"},
    "fish": {"_TYPER_COMPLETE_ARGS": "s1-mini voices li", "_TYPER_COMPLETE_FISH_ACTION": "get-args"},
    "powershell": {"_TYPER_COMPLETE_ARGS": "s1-mini voices li", "_TYPER_COMPLETE_WORD_TO_COMPLETE": "li"},
}


@pytest.mark.parametrize("shell", ASKED)
def test_every_shell_gets_completions_without_anything_heavy_being_loaded(shell: str) -> None:
    code = """
import atexit, sys
atexit.register(lambda: print(*sys.modules, sep="\\n", file=sys.stderr))
sys.argv = ["s1-mini"]
from s1_mini.cli.app import run
run()
"""
    given = ENVIRONMENT | ASKED[shell] | {"_S1_MINI_COMPLETE": f"complete_{shell}"}

    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=given, check=True)

    assert "list" in result.stdout
    assert "describe" not in result.stdout
    assert not (HEAVY - {"rich"}) & set(result.stderr.split())  # typer writes help for zsh and fish with rich


VALUES = {
    "say Hi. --format f": ["flac"],
    "say Hi. --device c": ["cpu", "cuda"],
    "endpoint invoke hello Hi. --format o": ["opus", "ogg"],
}


@pytest.mark.parametrize("typed", VALUES)
def test_values_are_completed_where_there_are_few(typed: str) -> None:
    words = f"s1-mini {typed}"
    asked = {"COMP_WORDS": words, "COMP_CWORD": str(len(words.split()) - 1), "_S1_MINI_COMPLETE": "complete_bash"}

    assert (
        python("-c", "import sys; sys.argv = ['s1-mini']; from s1_mini.cli.app import run; run()", **asked).split()
        == (VALUES[typed])
    )


def test_all_values_that_are_completed_are_allowed() -> None:
    assert get_args(Precision) == PRECISIONS
    assert get_args(AudioFormat) == FORMATS
    assert [EngineConfig(device=device).device for device in DEVICES] == [*DEVICES]


@pytest.mark.skipif(not shutil.which("bash") or os.name == "nt", reason="a bash of Linux or macOS")
def test_bash_completes_after_sourcing_the_printed_script(tmp_path: Path) -> None:
    command = tmp_path / "s1-mini"
    command.write_text(f"#!{sys.executable}\nfrom s1_mini.__main__ import main\nmain()\n")
    command.chmod(0o755)
    typed = """
eval "$(s1-mini --show-completion)"
COMP_WORDS=(s1-mini pa) COMP_CWORD=1
_s1_mini_completion s1-mini
echo "${COMPREPLY[@]}"
"""
    found = ENVIRONMENT | {"PATH": f"{tmp_path}{os.pathsep}{os.environ['PATH']}"}

    result = subprocess.run(["bash", "-c", typed], capture_output=True, text=True, env=found, check=False)

    assert (result.stdout, result.stderr) == ("package\n", "")
