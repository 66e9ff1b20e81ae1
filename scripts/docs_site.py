"""Build the documentation site from docs/ and the two README files (mkdocs.yml); docs/README.md is its menu.

Links to files that are not part of the site lead to the repository. `llms.txt`, a list of all pages for language models
(https://llmstxt.org), has the same order.
"""

import re
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).resolve().parent.parent
DOCS = ROOT / "docs"
# Pages from files that have another name or folder in the site
GENERATED = {"index.md": ROOT / "README.md", "pages.md": DOCS / "README.md"}
LINK = re.compile(r"(?<=\]\()([^\s)#:]++)(#[^\s)]*+)?(?=\))")
MENU = re.compile(r"^\| \*\*(.+?)\*\* \||^## (.+)$|\]\(([^\s)#:]+\.md)\)", re.MULTILINE)


def on_config(config: Any) -> None:
    """Set the menu."""
    config["nav"] = [{"s1_mini": "index.md"}, *menu(), *config["nav"], {"All pages by task": "pages.md"}]


def menu() -> list[dict[str, list[str]]]:
    """Return the sections of docs/README.md with their pages, each page once."""
    sections: list[dict[str, list[str]]] = []
    seen: set[str] = set()
    for task, heading, page in MENU.findall((DOCS / "README.md").read_text(encoding="utf-8")):
        if task or heading:
            sections.append({task or heading: []})
        elif not page.startswith("../") and page not in seen:
            seen.add(page)
            next(iter(sections[-1].values())).append(page)
    return sections


def on_files(files: Files, *, config: Any) -> None:
    """Replace docs/README.md, which would be the first page, by the README and the list of all pages."""
    for file in [each for each in files if each.src_uri == "README.md"]:
        files.remove(file)
    for name, source in GENERATED.items():
        files.append(File.generated(config, name, content=source.read_text(encoding="utf-8")))


def on_page_markdown(markdown: str, *, page: Page, config: Any, **_: Any) -> str:
    """Point each relative link at a page of the site, otherwise at the repository."""
    source = GENERATED.get(page.file.src_uri, DOCS / page.file.src_uri)
    depth = page.file.src_uri.count("/")
    names = {path: name for name, path in GENERATED.items()}

    def lead(found: re.Match[str]) -> str:
        target = (source.parent / found[1]).resolve()
        if target in names:
            uri = names[target]
        elif target.is_relative_to(DOCS) and target.is_file():
            uri = target.relative_to(DOCS).as_posix()
        else:
            kind = "tree" if target.is_dir() else "blob"
            return f"{config['repo_url']}/{kind}/main/{target.relative_to(ROOT).as_posix()}{found[2] or ''}"
        return "../" * depth + uri + (found[2] or "")

    return LINK.sub(lead, markdown)


def on_post_build(*, config: Any) -> None:
    """Write `llms.txt`: the title and the first paragraph of the README, and each page with its title."""
    title, about, *_ = GENERATED["index.md"].read_text(encoding="utf-8").split("\n\n")
    lines = [title, "", "> " + " ".join(about.split())]
    for section in menu():
        for name, pages in section.items():
            lines += ["", f"## {name}", ""]
            for page in pages:
                heading = (DOCS / page).read_text(encoding="utf-8").partition("\n")[0].lstrip("# ")
                lines.append(f"- [{heading}]({config['site_url']}{page.removesuffix('.md')}/)")
    Path(config["site_dir"], "llms.txt").write_text("\n".join(lines) + "\n", encoding="utf-8")
