"""What names and does not count: telephones, rooms, versions, mixed letters and digits, links, files and hashtags."""

from __future__ import annotations

import re

from s1_mini.text.english.lexicon import SAID, SPELT
from s1_mini.text.english.numerals import cardinal, digits, paired, written
from s1_mini.text.tables import signs, words

_PHONE = re.compile(
    r"(?<![\w.,/-])(?:\+?\d{1,3}[ .-])?(?:\(\d{3}\)[ .-]?|\d{3}[ .-])\d{3}[ .-]\d{4}(?![\w-])"
    r"|(?<![\w.,/])\+\d[\d ().-]{6,20}\d(?!\w)"
    r"|(?<![\w.,/-])\d{3}-\d{4}(?![\w-])|(?<![\w.,/-])\d{3}-\d{2}-\d{4}(?![\w-])"
    r"|(?<![\w.,/-])\d{4}(?:[ -]\d{4}){3}(?![\w-])"
    r"|(?<![\w.,/-])0\d{2,4}(?: \d{3,4}){1,2}(?![\w-])|(?<![\w.,/-])0\d{3,4} \d{6}(?![\w-])"
)
_DIALLED = re.compile(
    r"\b((?:call|dial|ring|phone|code|pin|zip|extension|password|ends?|ending)"
    r"(?: is| on| in| number)?:?) (\d{3,12})\b(?![.,]\d)",
    re.IGNORECASE,
)
_ZIP = re.compile(r"(?<=[a-z] )(\d{5})(?:-(\d{4}))?(?=$|\n|[.,;)]|$)|(?<=[A-Z]{2} )(\d{5})(?:-(\d{4}))?\b")
_ADDRESS = re.compile(r"(?<![\w.,:/$£€-])(\d{1,2}:\d\d|\d{1,3}(?:\.\d{1,3}){3})(:\d{2,5})?(?![\w.]*\d)")
_VERSION = re.compile(
    r"(?<![\w.])(?<!-(?=V))[vV](\d{1,4}(?:\.\d{1,4}){0,4})\b|(?<![\w.,])(?!\d{1,3}(?:\.\d{3}){2,}(?![\w.]))(\d{1,4}(?:\.\d{1,4}){2,4})(?![\w.]*\d)|"
    r"(?<=\b)([Vv]ersion|Python|Java|iOS|Android|Windows|macOS|Ubuntu|Node|Release|release|PyTorch|CUDA|Chrome|Firefox)"
    r" (\d{1,4}(?:\.\d{1,4}){1,3})(?![\w.]*\d)"
)
_PLACE = re.compile(
    r"\b(rooms?|suite|apartment|flight|route|highway|interstate|gate|bus|train|channel|area|boeing|airbus|locker|cell|"
    r"ward|model|extension|apt|seat|row|flat|unit|platform) #?(\d{1,4})([A-Z]?)(?![\w%°]|[.,:]\d| \d{1,3}/\d)",
    re.IGNORECASE,
)
_STREETS = "Street|Avenue|Road|Drive|Lane|Boulevard|Court|Place|Square|Highway|Parkway|Terrace|Way|Close|Crescent"
_HOUSE = re.compile(
    rf"(?<![\w.,:/$£€-])(\d{{1,5}})([A-Z]?) "
    rf"(?=(?:(?:[A-Z]\w{{0,20}}|\d{{1,3}}(?:st|nd|rd|th))\.? ){{1,4}}(?:{_STREETS})\b)"
)
_MIXED = re.compile(
    r"(?<![\w.,'$£€-])(?=[A-Za-z]{0,12}-?\d)(?=\d{0,12}-?[A-Za-z]|[A-Za-z]{1,12}-?\d)"
    r"[A-Za-z0-9]++(?:-[A-Za-z0-9]++){0,4}(?!\w)"
)
_SPAN = re.compile(r"(?<![\w.,-])([A-Z]{1,3})(\d{1,4})[-–](?=\1(\d{1,4})(?![\w-]))")
_VOWEL = re.compile("[AEIOUYaeiouy]")
_ROWS = re.compile(r"(?<=\b[A-Z])–(?=[A-Z]\b)")  # seats D–F
_STANDARD = re.compile(r"(?<![\w.])([A-Z])\.(\d{3})(?![\w.]*\d)")  # H.264
_GLUED_VERSION = re.compile(r"(?<=[A-Z]{3})v(?=\d)")  # YOLOv8
_RUN = re.compile(r"[A-Za-z]++|\d++")
_MEASURED = re.compile(r"\d+(?:st|nd|rd|th|s|x|k|K|M|B|bn|tn|mn)|\d+(?:-[a-z]{2,}\d*)+|\d+(?:-\d+)*", re.IGNORECASE)


def _phone(found: re.Match[str]) -> str:
    said = ["eight hundred" if group == "800" else digits(group) for group in re.findall(r"\d+", found.group())]
    return ("plus " if found.group().startswith("+") else "") + ", ".join(said)


def read_phones(text: str) -> str:
    """Spell out telephone, card and zip numbers, and what is dialled, digit by digit."""
    text = _PHONE.sub(_phone, text)
    text = _DIALLED.sub(lambda found: f"{found[1]} {digits(found[2])}", text)
    return _ZIP.sub(lambda found: ", ".join(digits(part) for part in found.groups() if part), text)


def _address(found: re.Match[str]) -> str:
    said = " dot ".join(digits(part) for part in found[1].split("."))
    return said + (f" colon {run(found[2][1:])}" if found[2] else "")


def _version(found: re.Match[str]) -> str:
    number = found[1] or found[2] or found[4]
    said = " point ".join(cardinal(int(part)) for part in number.split("."))
    return f"version {said}" if found[1] else f"{found[3]} {said}" if found[3] else said


def read_labels(text: str) -> str:
    """Spell out addresses of the net, versions, rooms, flights and houses."""
    text = _ADDRESS.sub(lambda found: found.group() if ":" in found[1] else _address(found), text)
    text = _ROWS.sub(" to ", text)
    text = _STANDARD.sub(lambda found: f"{found[1]} dot {run(found[2])}", text)
    text = _VERSION.sub(_version, _GLUED_VERSION.sub(" v", text))
    text = _PLACE.sub(lambda found: f"{found[1]} {run(found[2])}{' ' * bool(found[3])}{found[3]}", text)
    return _HOUSE.sub(lambda found: f"{run(found[1])}{' ' * bool(found[2])}{found[2]} ", text)


def run(number: str) -> str:
    """Spell out digits that name something: in pairs up to four, one by one beyond or after a zero."""
    is_short = len(number) <= 4 and not (len(number) > 1 and number[0] == "0")
    return paired(int(number)) if is_short else digits(number)


def _is_word(part: str) -> bool:
    return _VOWEL.search(part) is not None and (part.istitle() or (len(part) > 2 and not part.isupper()))


def _mixed(found: re.Match[str]) -> str:
    token = found.group()
    if _MEASURED.fullmatch(token):
        return token
    said = []
    for part in _RUN.findall(token):
        if part.isdecimal():
            said.append(written(part) if len(part) <= 2 else run(part))
        elif part.upper() in SAID or len(part) == 1 or _is_word(part):
            said.append(part)
        else:
            said.append(" ".join(part))
    return " ".join(said)


def _span(found: re.Match[str]) -> str:
    return f"{found[1]}{found[2]} to " if int(found[2]) < int(found[3]) else found.group()


def read_identifiers(text: str) -> str:
    """Spell out mixed letters and digits: A4, COVID-19, H2O."""
    return _MIXED.sub(_mixed, _SPAN.sub(_span, text))


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
_LINK_PARTS = re.compile(r"[A-Za-z]++|\d++|[^A-Za-z0-9]")
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
_SPELT_IN_LINKS = frozenset(each.lower() for each in SPELT if each not in ("IT", "AM", "US", "SEC", "ISO")) | frozenset(
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


def _read_link(link: str) -> str:
    said = []
    for part in _LINK_PARTS.findall(link):
        if part.isdecimal():
            said.append(run(part))
        elif part.isalpha() and part.isascii():
            said.append(" ".join(part.lower()) if part.lower() in _SPELT_IN_LINKS else part)
        else:
            said.append(_SIGNS.get(part, part))
    return " ".join(said)


def _url(found: re.Match[str]) -> str:
    link, after = _trimmed(found.group())
    link = re.sub(r"^\w+://", "", link).removesuffix("/")
    return _read_link(link) + after


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
        text = _MAIL.sub(lambda found: _read_link(found.group()), text) if "@" in text else text
        text = _DOMAIN.sub(_url, text)
        text = _FILE.sub(lambda found: _read_link(found.group()), text)
        text = _HOST.sub(_url, text)
    if "#" in text:
        text = re.sub(r"(?<!\w)#(?= of\b)", "number", text)
        text = re.sub(r"\b([CFJ])#(?!\w)", r"\1 sharp", text)
        text = _SERIAL.sub(lambda found: "number " + ", ".join(run(part) for part in found[1].split("-")), text)
        text = _TAG.sub(_tag, text)
    if "@" in text:
        text = _NAME.sub(lambda found: "at " + _read_link(found[1]).replace(" underscore ", " "), text)
    return text
