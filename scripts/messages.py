"""Print the messages that users see, for review: raised errors, logs, help, settings, metrics and the web page.

Example: python scripts/messages.py > messages.md
"""

import ast
import re
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path

SOURCE = Path(__file__).parents[1] / "src" / "s1_mini"
CALLS = ("echo", "MetricFamily", "warn", "warning", "error", "info", "exception", "say", "Option", "Argument")
JS_STRING = re.compile(r"""(["'`])((?:(?!\1)[^\\\n])*\s(?:(?!\1)[^\\\n])*)\1""")


def messages(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """Yield line and text of each message in parsed Python source; an f-string keeps its fields in braces."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Raise):
            parts: list[ast.AST] = [node]
        elif isinstance(node, ast.Call) and getattr(node.func, "attr", getattr(node.func, "id", "")) in CALLS:
            parts = [*node.args, *(keyword.value for keyword in node.keywords)]
        elif isinstance(node, ast.keyword) and node.arg in ("help", "description"):
            parts = [node.value]
        else:
            continue
        for part in parts:
            yield from _texts(part)


def _texts(node: ast.AST) -> Iterator[tuple[int, str]]:
    if isinstance(node, ast.JoinedStr):
        yield node.lineno, "".join(_piece(value) for value in node.values)
    elif isinstance(node, ast.Constant) and isinstance(node.value, str):
        yield node.lineno, node.value
    else:
        for child in ast.iter_child_nodes(node):
            yield from _texts(child)


def _piece(value: ast.expr) -> str:
    if isinstance(value, ast.FormattedValue):
        return f"{{{ast.unparse(value.value)}}}"
    return str(value.value) if isinstance(value, ast.Constant) else ""


class _Page(HTMLParser):
    """Collects the texts of a page, and the attributes that are shown or read aloud."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[tuple[int, str]] = []

    def handle_starttag(self, _: str, attrs: "list[tuple[str, str | None]]") -> None:
        for name, value in attrs:
            if name in ("title", "placeholder", "aria-label", "alt") and value:
                self.handle_data(value)

    def handle_data(self, data: str) -> None:
        if text := " ".join(data.split()):
            self.found.append((self.getpos()[0], text))


def page_messages(path: Path) -> Iterator[tuple[int, str]]:
    """Yield line and text of each message in an HTML or JavaScript file."""
    text = path.read_text(encoding="utf-8")
    if path.suffix == ".html":
        page = _Page()
        page.feed(text)
        yield from page.found
        return
    for number, line in enumerate(text.splitlines(), 1):
        for found in JS_STRING.finditer(line.partition(" // ")[0]):
            yield number, found[2]


def main() -> None:
    """Print one section per file."""
    for path in sorted(SOURCE.rglob("*")):
        if path.suffix == ".py":
            found = messages(ast.parse(path.read_text(encoding="utf-8")))
        elif path.suffix in {".html", ".js"}:
            found = page_messages(path)
        else:
            continue
        lines = sorted({(line, text) for line, text in found if " " in text.strip()})
        if lines:
            print(f"\n## {path.relative_to(SOURCE).as_posix()}\n")
        for line, text in lines:
            print(f"- {line}: {' '.join(text.split())}")


if __name__ == "__main__":
    main()
