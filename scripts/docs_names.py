"""Complete the docstrings for the API reference (mkdocs.yml): comments on attributes, and links to public names."""

import ast
import linecache
import re
from collections.abc import Iterator
from typing import Any

import griffe

NAME = re.compile(r"(?<!\[)`([A-Z]\w+)(\.\w+)?`(?!\])")
COMMENT = re.compile(r"  # (.*)")
# The classes that describe keywords and methods, by the class that lists them
DESCRIBED = {
    "types.SharedOptions": "types.TTSRequest",
    "types.SamplingOptions": "types.SamplingParams",
    "engine.ProductionTTSEngine": "speech_engine.SpeechEngine",
}


class Names(griffe.Extension):
    """Uses comments as docstrings of attributes, and links public names."""

    def on_attribute_instance(self, *, attr: griffe.Attribute, **_: Any) -> None:
        """Take the description of a setting or an option, otherwise the comment after or above an attribute."""
        arguments: list[Any] = list(getattr(attr.value, "arguments", ()))
        keywords = {getattr(each, "name", ""): each for each in arguments}
        if str(getattr(attr.value, "function", "")) == "option":  # `s1_mini.types.option(default, help, …)`
            text, attr.value = str(ast.literal_eval(str(arguments[1]))), arguments[0]
        elif "description" in keywords:
            try:
                text = str(ast.literal_eval(str(keywords["description"].value)))
            except ValueError:  # an f-string, whose values are not known here
                text = ""
            attr.value = keywords.get("") or next(iter(keywords.values()))
        else:
            text = commented(attr)
        if text and not attr.has_docstring:
            attr.docstring = griffe.Docstring(text, parent=attr)

    def on_package(self, *, pkg: griffe.Module, **_: Any) -> None:
        """Describe the keywords of requests and inherited methods, and link the public names in all docstrings."""
        for listed, described in DESCRIBED.items():
            for name, described_member in pkg[described].members.items():
                member = pkg[listed].members.get(name)
                if member is not None and not member.has_docstring:
                    member.docstring = described_member.docstring

        def link(found: "re.Match[str]") -> str:
            is_public = found[1] in pkg.members and not (found[2] and found[2][1:] not in pkg[found[1]].all_members)
            target = f"{pkg.path}.{found[1]}{found[2] or ''}"
            return f"[`{found[1]}{found[2] or ''}`][{target}]" if is_public else found[0]

        for docstring in docstrings(pkg):
            docstring.value = NAME.sub(link, docstring.value)


def docstrings(each: griffe.Object) -> Iterator[griffe.Docstring]:
    """Yield the docstrings of an object and of all objects inside of it."""
    if each.docstring is not None:
        yield each.docstring
    for member in each.members.values():
        if isinstance(member, griffe.Object):
            yield from docstrings(member)


def commented(attr: griffe.Attribute) -> str:
    """Return the comment in the last line of an attribute, or the whole lines of comments above it."""
    path, first, last = str(attr.filepath), attr.lineno or 0, attr.endlineno or 0
    if found := COMMENT.search(linecache.getline(path, last)):
        return found[1]
    lines: list[str] = []
    while (line := linecache.getline(path, first - 1 - len(lines)).strip()).startswith("#"):
        lines.insert(0, line.lstrip("# "))
    return " ".join(lines)
