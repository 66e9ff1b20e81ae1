"""Characters that decorate a text and have no reading: bullets, box drawing, geometric shapes, dingbats, arrows.

`BMP_EMOJI` are the characters of the mixed blocks that Unicode counts as emoji; those are read by their names.
"""

from __future__ import annotations

import re

# Emoji in U+2300 to U+2BFF (Unicode 16, emoji-data.txt) without arrows and plain shapes, which are ornaments here.
BMP_EMOJI = (
    "\u231a\u231b\u2328\u23cf\u23e9-\u23f3\u23f8-\u23fa\u2600-\u2604\u260e\u2611\u2614\u2615\u2618\u261d\u2620\u2622\u2623\u2626"
    "\u262a\u262e\u262f\u2638-\u263a\u2640\u2642\u2648-\u2653\u265f\u2660\u2663\u2665\u2666\u2668\u267b\u267e\u267f"
    "\u2692-\u2697\u2699\u269b\u269c\u26a0\u26a1\u26a7\u26aa\u26ab\u26b0\u26b1\u26bd\u26be\u26c4\u26c5\u26c8\u26ce\u26cf"
    "\u26d1\u26d3\u26d4\u26e9\u26ea\u26f0-\u26f5\u26f7-\u26fa\u26fd\u2702\u2705\u2708-\u270d\u270f\u2712\u2714\u2716\u271d"
    "\u2721\u2728\u2733\u2734\u2744\u2747\u274c\u274e\u2753-\u2755\u2757\u2763\u2764\u2795-\u2797\u27a1\u27b0\u27bf"
    "\u2b1b\u2b1c\u2b50\u2b55"
)
BULLETS = "-*+•‣◦⁃∙▪▫■□▶►▸▹●○◆◇◉★☆➤➜➔❖✦✧※"
_ORNAMENT = re.compile(
    "[\u2190-\u21ff\u2500-\u25ff\u2800-\u297f\u2b00-\u2bff\u3030\u303b\u303d\u3012\u3013\ue000-\uf8ff"
    "\U0001f536-\U0001f539\U0001f650-\U0001f67f\U0001f780-\U0001f8ff\U0001fb00-\U0001fbff"
    rf"·‣⁃∙※]|(?![{BMP_EMOJI}✓✗✘♡☹♩♭♯])[\u2600-\u27bf]"
)

_SAME = str.maketrans(dict.fromkeys("➔➜➝➞➙➡⟶⟹⇨⇾", "→") | dict.fromkeys("│┃║╎┆┊", "|"))
_BETWEEN_WORDS = re.compile(r"(?<=[\w)]) [▸►▶❯] (?=\w)")
_STARS = re.compile(r"(?<=\d) ?[★⭐](?!\w)")
_ACCIDENTAL = re.compile(r"(?<=\b[A-G]) ?([♯♭])")
_DROPPED = re.compile(f"(?![→←↑↓↔⇒⇐·])(?:{_ORNAMENT.pattern})+")


def unified(text: str) -> str:
    """Return a text with one form of each arrow and of each line between cells, and words for stars, ♯ and ♭."""
    text = _BETWEEN_WORDS.sub(", ", text.translate(_SAME))
    return _ACCIDENTAL.sub(lambda found: " sharp" if found[1] == "♯" else " flat", _STARS.sub(" star", text))


def without_ornaments(text: str) -> str:
    """Return a text with a space for each run of ornaments, but arrows that `read_arrows` reads."""
    return _DROPPED.sub(" ", text)


def is_ornament(character: str) -> bool:
    """Return whether a character decorates and has no reading."""
    return _ORNAMENT.fullmatch(character) is not None
