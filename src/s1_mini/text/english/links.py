"""Addresses of pages, mails, files and people, and hashtags."""

from __future__ import annotations

import re

from s1_mini.text.english.identifiers import run
from s1_mini.text.english.lexicon import SPELT
from s1_mini.text.tables import signs, words

_LABEL = r"[A-Za-z0-9](?:[A-Za-z0-9-]{0,62})"
_DOMAINS = "com|org|net|edu|gov|int|info|biz|io|co|uk|de|fr|ai|app|dev|tv|eu|ch|nl|jp|ca|au|es|se|cloud|blog|wiki"
_URL = re.compile(r"(?<![\w@])(?:(?:https?|ftp)://|www\.(?=\w))[^\s<>\"]++", re.IGNORECASE)
_MAIL = re.compile(rf"(?<![\w.+@-])[\w.+-]{{1,64}}@{_LABEL}(?:\.{_LABEL}){{1,5}}(?![\w@])")
_DOMAIN = re.compile(
    rf"(?<![\w@./-])(?:{_LABEL}\.){{1,5}}(?:{_DOMAINS})(?![\w@-]|\.\w)(?::\d{{2,5}})?(?:/[^\s<>\"]*+)?"
)
_HOST = re.compile(r"(?<![\w@./-])localhost(?::\d{2,5})?(?:/[^\s<>\"]*+)?")
_ENDINGS = (
    "pdf|txt|csv|tsv|json|jsonl|xml|html?|css|scss|js|jsx|mjs|ts|tsx|vue|py|pyi|ipynb|md|rst|tex|bib|docx?|xlsx?|pptx?|odt|epub|"
    "png|jpe?g|gif|svg|webp|bmp|tiff?|ico|psd|mp[34]|m4a|wav|flac|ogg|opus|mkv|mov|avi|webm|zip|tar|gz|bz2|xz|7z|rar|exe|dll|"
    "dmg|apk|msi|deb|rpm|iso|jar|so|bin|cpp|hpp|cc|cu|java|kt|rs|rb|go|mod|swift|php|sql|sqlite3?|db|sh|bat|ps1|ya?ml|toml|ini|"
    "cfg|log|conf|lock|env|bak|tmp|pem|pub|parquet|safetensors|gguf|onnx|pth?|npy|npz|pkl"
)
_FILE = re.compile(
    rf"(?<![\w@./-])[\w-]{{1,80}}(?:\.[\w-]{{1,20}}){{0,2}}\.(?:{_ENDINGS})(?:\.\d{{1,3}}){{0,3}}(?![\w])"
    r"|(?<![\w@./-])[a-z_][\w-]{2,80}\.[ch](?!\w)|(?<![\w@./-])lib[\w-]{1,80}\.a(?!\w)"
)
_HIDDEN = re.compile(r"(?<![^\s(\"'`])\.(?=[a-z][\w-]{2}|NET\b)|(?<=\bASP)\.(?=NET\b)")
_PATH = re.compile(r"(?<![^\s(\"'])(?:(?:~|[A-Z]:)(?:[/\\][\w.+-]{1,80}){1,20}|(?:[/\\][\w.+-]{1,80}){2,20})[/\\]?")
_OPTION = re.compile(r"(?<!\S)--(?=[a-z]{2})")
_SERIAL = re.compile(r"#(\d{1,12}(?:-\d{1,12}){1,4})(?![\w-])")
_TAG = re.compile(r"(?<![\w&#/])#(\w{1,100})")
_NAME = re.compile(r"(?<![\w@.])@(\w[\w.]{0,50}\w|\w)(?![@\w])")
_PARTS = re.compile(r"[A-Za-z]++|\d++|[^A-Za-z0-9]")
# Acronyms before a small letter, as in AIforAll; others might be a word: AMillion, IDo.
_GLUED = words("AI DJ EU EV HR ML PC PR QA TV UI UK UN US UX VR") + [each for each in SPELT if len(each) > 2]
_CAMEL = re.compile(
    rf"PhD|iOS|(?:{'|'.join(sorted(_GLUED, key=len, reverse=True))})(?=[a-z]{{2}})|\d++[A-Z](?![a-z])|"
    r"[A-Z]+(?=[A-Z][a-z]|\b|\d|_)|[A-Z]?[a-z]++|\d++|[^\W\d_A-Za-z]++|[A-Z]+"
)
_SIGNS = signs(
    ".=dot, /=slash, ?=question mark, ==equals, &=and, -=dash, _=underscore, #=hash, %=percent, :=colon, ~=tilde, "
    "+=plus, @=at, ,=comma, ;=semicolon, \\=backslash"
)
_SPELT = frozenset(each.lower() for each in SPELT if each not in ("IT", "AM", "US", "SEC", "ISO")) | frozenset(
    words(
        "io uk de fr tv eu ch nl jp ca au es se js ts py md csv tsv txt html htm xml php asp exe cpp sh gz docx doc "
        "etc sql dll dmg mkv rs xlsx xls pptx ppt mp yaml yml https http ftp"
    )
)


def _trimmed(link: str) -> tuple[str, str]:
    """Part a link from the marks behind it that belong to the sentence."""
    bare = link.rstrip(".,;:!?'\"")
    if bare.endswith(")") and "(" not in bare:
        bare = bare.rstrip(").,;:!?'\"")
    return bare, link[len(bare) :]


def _read(link: str) -> str:
    said = []
    for part in _PARTS.findall(link):
        if part.isdecimal():
            said.append(run(part))
        elif part.isalpha() and part.isascii():
            said.append(" ".join(part.lower()) if part.lower() in _SPELT else part)
        else:
            said.append(_SIGNS.get(part, part))
    return " ".join(said)


def _url(found: re.Match[str]) -> str:
    link, after = _trimmed(found.group())
    link = re.sub(r"^\w+://", "", link).removesuffix("/")
    return _read(link) + after


def _hidden(found: re.Match[str]) -> str:
    """Read the dot before a hidden file's name, or before NET, which is a word there."""
    return " dot " if found.string[found.start() - 1 : found.start()].isalnum() else "dot "


def _tag(found: re.Match[str]) -> str:
    word = found[1]
    if word.isdecimal():
        return f"number {word}"
    return f"hashtag {' '.join(_CAMEL.findall(word)) or word}"


def read_links(text: str) -> str:
    """Spell out addresses, names of files, hashtags and names of accounts."""
    text = _OPTION.sub("dash dash ", text) if "--" in text else text
    text = _PATH.sub(_url, text) if "/" in text or "\\" in text else text
    if "." in text or "://" in text or "localhost" in text:
        text = _HIDDEN.sub(_hidden, text)
        text = _URL.sub(_url, text)
        text = _MAIL.sub(lambda found: _read(found.group()), text) if "@" in text else text
        text = _DOMAIN.sub(_url, text)
        text = _FILE.sub(lambda found: _read(found.group()), text)
        text = _HOST.sub(_url, text)
    if "#" in text:
        text = re.sub(r"(?<!\w)#(?= of\b)", "number", text)
        text = re.sub(r"\b([CFJ])#(?!\w)", r"\1 sharp", text)
        text = _SERIAL.sub(lambda found: "number " + ", ".join(run(part) for part in found[1].split("-")), text)
        text = _TAG.sub(_tag, text)
    if "@" in text:
        text = _NAME.sub(lambda found: "at " + _read(found[1]).replace(" underscore ", " "), text)
    return text
