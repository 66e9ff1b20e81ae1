"""Small corpora for tests: an input file, the command that synthesizes it, and its output."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from commands import ENVIRONMENT
from s1_mini.cli.app import run

NUM_TEXTS = 20
SHORT = ("--parameters", '{"max_new_tokens": 6}', "--shard-size", "3")
Local = Callable[..., int]  # input, output, options


def write_texts(path: Path, num_texts: int = NUM_TEXTS) -> Path:
    """Write lines, each with a unique id and text, of various lengths."""
    lines = [{"id": f"text-{i}", "text": f"Number {i}. " * (1 + i % 3)} for i in range(num_texts)]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")
    return path


def speak(monkeypatch: pytest.MonkeyPatch, *words: object) -> int:
    """Run `s1-mini corpus` in this process."""
    monkeypatch.setattr(sys, "argv", ["s1-mini", "corpus", *map(str, words)])
    return run()


def begin(*words: object, log: Path, **variables: str) -> subprocess.Popen[bytes]:
    """Start `s1-mini corpus` as a subprocess."""
    command = [sys.executable, "-m", "s1_mini", "corpus", *map(str, words)]
    with log.open("ab") as file:
        return subprocess.Popen(command, stdout=file, stderr=file, env=ENVIRONMENT | variables)


def num_entries(output: Path) -> int:
    """Count the complete shards."""
    return len([*(output / "manifest").glob("[0-9]*.json")])


def tree(folder: Path) -> dict[str, bytes]:
    """Return every file below a folder, including hidden ones."""
    return {
        path.relative_to(folder).as_posix(): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()
    }


def lines_of(content: bytes) -> list[dict[str, object]]:
    return [json.loads(line) for line in content.splitlines()]


def metadata(output: Path) -> list[dict[str, object]]:
    """Return the metadata lines of all audio shards, in order."""
    return [line for path in sorted(output.glob("shards/*/metadata.jsonl")) for line in lines_of(path.read_bytes())]


def errors(output: Path) -> list[tuple[object, object, object]]:
    """Return line, id and reason of all bad lines."""
    return [(it["line"], it["id"], it["reason"]) for it in lines_of((output / "errors.jsonl").read_bytes())]


def ids(lines: Sequence[dict[str, object]]) -> list[object]:
    return [line["id"] for line in lines]
