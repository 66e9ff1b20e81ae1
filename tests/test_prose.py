"""The project's English stays plain: translated constructions that were once common here do not come back."""

from __future__ import annotations

import ast
import json
import re
import runpy
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
FOLDERS = ("src", "benchmark", "recipes", "scripts", "tests", "sagemaker", "infra")
messages = runpy.run_path(str(ROOT / "scripts" / "messages.py"))["messages"]

BANNED = {
    "use 'is not a'": r"(?<![Tt]here )(?<!if )\b(?:is|are|was|were) (?:no(?! longer| more| less| such| one)|none of)\b",
    "name the thread, caller or client": r"\b(?:[Ww]hoever|of who|to who|for who|by who)\b",
    "use a noun instead of a clause": r"\b(?:of|by|to|with|from|in) what (?:is|are|was|it|they|comes|can|fails|goes)\b",
    "use 'again' or 'therefore'": r"\b(?:anew|hence|lest|whence|wherein|thereof|likewise)\b",
    "use 'return', 'release' or 'accept'": r"\b(?:let go of|lets go|gives? back|takes? in|of its own accord)\b",
    "use 'next to' or 'besides'": r"(?<!--)\bbeside\b",
    "use 'also' before the verb": r", too\.",
    "use 'otherwise'": r", else\.",
    "use 'audio'": r"\b(?:seconds? of sound|first sound|sound a second)\b",
}
# Much faster than tokenize; the comment is the group.
STRING_OR_COMMENT = re.compile(
    r"""(?s:"{3}(?:\\.|.)*?"{3}|'{3}(?:\\.|.)*?'{3})|"(?:\\.|[^"\\\n])*"|'(?:\\.|[^'\\\n])*'|(\#[^\n]*)"""
)
# The first word of a function's docstring that should be Return, Write, Allow, …
BANNED_FIRST = re.compile(r"(?:Give|Gives|Tell|Tells|Say|Says|Let|Lets)\b")
# Only files in which one of the patterns matches are parsed, because parsing all of them takes seconds.
ANY = re.compile("|".join([*BANNED.values(), rf'"""{BANNED_FIRST.pattern}']))
BETWEEN_LITERALS = re.compile(r"""(["'])\s+[fr]?\1""")  # of one text


def _markdown(text: str) -> Iterator[tuple[int, str]]:
    is_code = False
    for number, line in enumerate(text.split("\n"), 1):
        is_code ^= line.lstrip().startswith("```")
        if not is_code:
            yield number, line


def _notebook(text: str) -> Iterator[tuple[int, str]]:
    for number, cell in enumerate(json.loads(text)["cells"], 1):
        if cell["cell_type"] == "markdown":
            yield number, "".join(cell["source"])


def _statements(node: ast.AST) -> Iterator[ast.AST]:
    """Yield a module and its statements, nested ones too; `ast.walk` would also visit all expressions."""
    yield node
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.stmt | ast.excepthandler | ast.match_case):
            yield from _statements(child)


def _python(source: str) -> Iterator[tuple[int, str]]:
    """Yield docstrings, comments and messages, with their lines."""
    tree = ast.parse(source)
    for node in _statements(tree):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            is_function = isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
            yield getattr(node, "lineno", 1), "\0" * is_function + (ast.get_docstring(node) or "")
    if "\ndef test_" not in source:  # tests have no messages for users
        yield from messages(tree)
    line, end = 1, 0
    for found in STRING_OR_COMMENT.finditer(source):
        if found[1]:
            line, end = line + source.count("\n", end, found.start()), found.start()
            yield line, found[1]


def _texts() -> Iterator[tuple[str, str]]:
    readers = {".md": _markdown, ".ipynb": _notebook, ".py": _python}
    found = [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), *(ROOT / "notebooks").glob("*.ipynb")]
    found += [path for folder in FOLDERS for path in (ROOT / folder).rglob("*.py")]
    for path in sorted(found):
        if path != Path(__file__):
            source = path.read_text(encoding="utf-8")
            if path.suffix == ".py" and not ANY.search(BETWEEN_LITERALS.sub("", source)):
                continue
            for line, text in readers[path.suffix](source):
                yield f"{path.relative_to(ROOT).as_posix()}:{line}", text


@pytest.fixture(scope="module")
def texts() -> list[tuple[str, str]]:
    return list(_texts())


@pytest.mark.parametrize("reason", BANNED)
def test_no_translated_construction_is_in_docs_docstrings_comments_and_messages(
    texts: list[tuple[str, str]], reason: str
) -> None:
    banned = re.compile(BANNED[reason])
    hits = [f"{place}: {hit[0]!r} in {text.strip()[:80]!r}" for place, text in texts if (hit := banned.search(text))]
    assert not hits, f"{reason}:\n" + "\n".join(hits)


def test_function_docstrings_begin_with_what_the_function_does(texts: list[tuple[str, str]]) -> None:
    hits = [f"{place}: {text[1:60]!r}" for place, text in texts if text[0:1] == "\0" and BANNED_FIRST.match(text[1:])]
    assert not hits, "\n".join(hits)
