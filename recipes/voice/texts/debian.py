"""Gather the corpora from the files of Debian packages, which the docstring of `recipes.voice.texts` names."""

import json
import lzma
import re
import subprocess
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from recipes.voice.texts.stream import MAX_CHARACTERS, Random, bare, is_held_out, sentence_of

MIN_WORDS, MAX_WORDS = 2, 25  # of a natural sentence

_WORDNET = Path("/usr/share/wordnet")
_FORTUNES = Path("/usr/share/games/fortunes")
_WORDS = Path("/usr/share/dict/american-english")
_LEFT_OUT = frozenset((
    *("art", "ascii-art", "definitions", "perl", "songs-poems", "zippy", "knghtbrd", "linux", "computers", "drugs"),
    *("men-women", "ethnic", "limerick", "translate-me", "debian", "linuxcookie", "startrek"),
))  # fmt: skip
# Slurs and obscenities of the dictionaries: a voice does not need them.
_UNWANTED = re.compile(
    r"\b(nigg|fag|kike|spic\b|chink|gook|wop\b|coon|darky|dyke|fuck|shit|cunt|cock|whore|slut|rape)", re.I
)
_ALLOWED = re.compile(r"[A-Za-z][A-Za-z ,.'!?;:\"-]*")


def prepare(output: Path) -> None:
    """Gather the corpora from Debian's files into one compressed file."""
    gathered = {"examples": _examples(), "glosses": _glosses(), "verses": _verses(), "fortunes": _fortunes()}
    kept: dict[str, str] = {}
    for name, raw in gathered.items():
        before = len(kept)
        for text in raw:
            clean = _cleaned(text)
            if clean and not is_held_out(clean):
                kept.setdefault(bare(clean), clean)
        print(f"{name}: {len(kept) - before:,} sentences")
    sentences = list(kept.values())
    Random(0).shuffle(sentences)
    counts = Counter(word for sentence in sentences for word in re.findall(r"[a-z]+(?:'[a-z]+)?", sentence))
    words = sorted(
        {word for word in _words() if re.fullmatch(r"[A-Za-z][a-z]{1,17}", word) and not _UNWANTED.match(word)}
    )
    known = set(words)
    common = [word for word, count in counts.most_common(12_000) if count > 2 and (word in known or "'" in word)]
    content = {"sentences": sentences, "common": common, "words": words}
    output.write_bytes(lzma.compress(json.dumps(content).encode(), preset=9))
    print(f"{len(sentences):,} sentences, {len(common):,} common words, {len(words):,} words")
    print(f"{output}: {output.stat().st_size / 1e6:.1f} MB")


def _wordnet_lines() -> Iterator[str]:
    for part in ("noun", "verb", "adj", "adv"):
        for line in (_WORDNET / f"data.{part}").read_text("latin-1").splitlines():
            if "|" in line and not line.startswith(" "):
                yield line.split("|", 1)[1].strip()


def _examples() -> Iterator[str]:
    for gloss in _wordnet_lines():
        yield from re.findall(r'"([^"]+)"', gloss)


def _glosses() -> Iterator[str]:
    for gloss in _wordnet_lines():
        plain = re.sub(r"\([^)]*\)", " ", re.sub(r'"[^"]*".*', "", gloss))
        yield from (part for part in plain.split(";") if part.count(" ") > 3)


def _verses() -> Iterator[str]:
    text = subprocess.run(
        ["/usr/bin/bible", "-f", "gen1:1-rev22:21"], capture_output=True, check=True, text=True
    ).stdout
    for line in text.splitlines():
        yield line.partition(" ")[2]


def _fortunes() -> Iterator[str]:
    for path in sorted(_FORTUNES.iterdir()):
        if path.suffix or path.name in _LEFT_OUT:
            continue
        for entry in path.read_text("utf-8", errors="replace").split("\n%\n"):
            body = re.sub(r"\n\s*--.*", "", entry, flags=re.DOTALL)
            yield from re.split(r"(?<=[.!?]) +", " ".join(body.split()))


def _words() -> Iterator[str]:
    yield from _WORDS.read_text().split()
    for part in ("noun", "verb", "adj", "adv"):
        for line in (_WORDNET / f"index.{part}").read_text("latin-1").splitlines():
            if not line.startswith(" "):
                yield line.split(" ", 1)[0]


def _cleaned(text: str) -> str | None:
    """Return a piece of text as a sentence, or None if it cannot be read aloud."""
    text = " ".join(text.replace("`", "'").replace("--", ", ").replace(" ,", ",").split()).strip(" ;:,-")
    num_words = len(text.split())
    if not (MIN_WORDS <= num_words <= MAX_WORDS and len(text) < MAX_CHARACTERS and _ALLOWED.fullmatch(text)):
        return None
    if text.count('"') % 2 or _UNWANTED.search(text):
        return None
    if re.search(r"[A-Z]{3}|\.\.|[,;:]{2}|'{2}|\b(?!Mr|Dr|St|Mrs)[A-Za-z]{1,3}\.[A-Za-z ]", text):
        return None
    return sentence_of(text)
