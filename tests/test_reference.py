"""The documentation site: it has every page and public name, and is built without a broken link."""

from __future__ import annotations

import ast
import dataclasses
import inspect
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import s1_mini
from own_folder import path_with

ROOT = Path(__file__).parents[1]
PUBLIC = [getattr(s1_mini, name) for name in s1_mini.__all__]


def test_every_public_name_is_in_the_reference_once() -> None:
    pages = "".join(page.read_text(encoding="utf-8") for page in (ROOT / "docs" / "api").glob("*.md"))
    names = re.findall(r"^::: s1_mini\.(\w+)$", pages, re.MULTILINE)

    assert sorted(names) == sorted({*s1_mini.__all__} - {"__version__"})


@pytest.mark.parametrize("kind", [each for each in PUBLIC if dataclasses.is_dataclass(each)])
def test_each_field_of_a_public_class_has_a_comment_which_the_reference_shows(kind: type) -> None:
    lines = inspect.getsource(kind).splitlines()
    (definition,) = ast.parse(inspect.cleandoc(inspect.getsource(kind))).body
    assert isinstance(definition, ast.ClassDef)

    bare = [
        lines[(each.end_lineno or 0) - 1].strip()
        for each in definition.body
        if isinstance(each, ast.AnnAssign) and "ClassVar" not in ast.unparse(each.annotation)
        if each.value is None or not ast.unparse(each.value).startswith("option(")  # which has a description
        if "  # " not in lines[(each.end_lineno or 0) - 1] and not lines[each.lineno - 2].strip().startswith("#")
    ]
    assert bare == []


@pytest.mark.docs
def test_the_site_has_each_page_and_a_section_for_each_public_name(tmp_path: Path) -> None:
    path = path_with("mkdocs", tmp_path / "packages", "--requirement", "requirements-docs.txt")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(tmp_path / "site")]

    subprocess.run(command, cwd=ROOT, env=os.environ | {"PYTHONPATH": path}, check=True)

    site = tmp_path / "site"
    texts = {page.relative_to(site).as_posix(): page.read_text(encoding="utf-8") for page in site.rglob("*.html")}
    reference = "".join(text for name, text in texts.items() if name.startswith("api/"))
    assert [name for name in s1_mini.__all__[1:] if f'id="s1_mini.{name}"' not in reference] == []
    assert 'id="s1_mini.ProductionTTSEngine.generate"' in reference
    assert 'href="errors/#s1_mini.RequestError"' in reference
    assert "The same seed gives the same audio" in reference
    assert 'href="serving/"' in texts["index.html"], "the first page is the README, with links inside the site"
    assert "github.com/s1-mini/s1-mini/blob/main/CONTRIBUTING.md" in texts["index.html"]
    pages = {page.stem for page in (ROOT / "docs").rglob("*.md")} - {"README", "index"}
    assert {page for page in pages if not any(name.endswith(f"{page}/index.html") for name in texts)} == set()
    listed = (site / "llms.txt").read_text(encoding="utf-8")
    assert "- [Deploy to AWS SageMaker](https://s1-mini.github.io/s1-mini/deploy/)" in listed
