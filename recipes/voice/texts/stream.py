"""The stream: which kind of utterance comes when, and how one of each kind is made."""

import functools
from collections.abc import Callable, Iterator
from math import gcd

from recipes.voice.texts.lists import Corpora, Random, is_held_out, one, word_lists
from recipes.voice.texts.templates import FIGURES, SENTENCES, filled, sentence_of, template

MAX_CHARACTERS = 220

# Kinds in every block of forty utterances. The prototype overfitted 28,000 sentences and needed its salads for
# spelling, so there are some, and a third is natural; the rest covers what people type to a voice.
WEIGHTS = {
    "natural": 14,  # how English goes on; each is used once before any comes again
    "salad": 6,  # how English is spelt: any word beside any other
    "template": 7,  # statements, questions, commands, service and technical talk, names
    "number": 4,  # digits, years, dates, times, money, units
    "short": 5,  # one or two words: where small voices run away
    "long": 2,  # several clauses up to 220 characters
    "list": 2,  # commas
}
BLOCK = sum(WEIGHTS.values())


def utterances(seed: int, corpora: Corpora | None = None, start: int = 0) -> Iterator[str]:
    """Yield utterances without end, from the ``start``-th; the i-th depends on seed, corpora and i alone.

    Without corpora the templates' words stand in for them. Held-out sentences never come.
    """
    corpora = corpora or _small_corpora()
    i = start
    while True:
        kind, ordinal = _kind(seed, i)
        for attempt in range(100):
            rng = Random(f"{seed}/{i}/{attempt}")
            natural = kind == "natural"
            text = _natural(rng, corpora, seed, ordinal, attempt) if natural else _KINDS[kind](rng, corpora)
            if 0 < len(text) <= MAX_CHARACTERS and not is_held_out(text):
                yield text
                break
        i += 1


def _kind(seed: int, i: int) -> tuple[str, int]:
    """Name the kind of the i-th utterance and count how many of this kind came before it."""
    kinds = _block(seed, i // BLOCK)
    kind = kinds[i % BLOCK]
    return kind, i // BLOCK * WEIGHTS[kind] + kinds[: i % BLOCK].count(kind)


@functools.lru_cache(maxsize=8)
def _block(seed: int, block: int) -> list[str]:
    kinds = [kind for kind, weight in WEIGHTS.items() for _ in range(weight)]
    Random(f"{seed}/block/{block}").shuffle(kinds)
    return kinds


def _natural(rng: Random, corpora: Corpora, seed: int, ordinal: int, attempt: int) -> str:
    num = len(corpora.sentences)
    stride = next(step for step in range(int(num * 0.618) + seed % 97 + 1, 3 * num + 100) if gcd(step, num) == 1)
    sentence = corpora.sentences[((ordinal + attempt * 7919) * stride + seed) % num]
    if ordinal < num:
        return sentence
    return _embedded(rng, sentence)  # the corpus is used up: let somebody say it


def _embedded(rng: Random, sentence: str) -> str:
    who = one(rng, "first") if rng.random() < 0.5 else f"the {one(rng, 'person')}"
    verb = rng.choice(["said", "asked", "replied", "whispered", "answered", "wrote", "thought", "shouted"])
    return sentence_of(f'{who} {verb} {one(rng, "when")}, "{sentence}"')


def _salad(rng: Random, corpora: Corpora) -> str:
    words = [rng.choice(corpora.common if rng.random() < 0.4 else corpora.words) for _ in range(rng.randint(3, 8))]
    if rng.random() < 0.25:
        words[rng.randrange(len(words) - 1)] += ","
    text = " ".join(words)
    if rng.random() < 0.85:
        text = text[0].upper() + text[1:]
    return text + rng.choices(["", ".", "?", "!"], [15, 65, 12, 8])[0]


def _template(rng: Random, corpora: Corpora) -> str:
    return sentence_of(filled(rng, template(rng, rng.choice(SENTENCES)), corpora))


def _number(rng: Random, corpora: Corpora) -> str:
    return sentence_of(filled(rng, template(rng, "number"), corpora))


def _short(rng: Random, corpora: Corpora) -> str:
    mark = rng.choices([".", "!", "?", "", "..."], [55, 20, 15, 8, 2])[0]
    match rng.randrange(8):
        case 0 | 1:
            text = one(rng, "phrase")
        case 2:
            text = f"{one(rng, 'phrase')}, {one(rng, 'first')}"
        case 3:
            text = rng.choice(corpora.common)
        case 4:
            text = rng.choice(corpora.words)
        case 5:
            text = f"{one(rng, 'adjective')} {one(rng, 'noun')}"
        case 6:
            text = rng.choice([one(rng, "first"), one(rng, "place"), f"{one(rng, 'first')} {one(rng, 'last')}"])
        case _:
            figures = [FIGURES[name](rng) for name in ("integer", "clock", "money", "ordinal")]
            text = rng.choice([*figures, f"{rng.randint(0, 100)}%"])
    return text[0].upper() + text[1:] + mark


def _long(rng: Random, corpora: Corpora) -> str:
    opening = rng.choice(corpora.sentences)
    if rng.random() < 0.4:
        return f"{opening} {_template(rng, corpora)}"
    clauses = [filled(rng, template(rng, "statement"), corpora) for _ in range(rng.randint(2, 3))]
    if rng.random() < 0.5:
        clauses.insert(0, opening.rstrip(".!?;:"))
    joint = rng.choice([", and ", ", but ", ", so ", ", because ", ", while ", "; "])
    return sentence_of(", ".join(clauses[:-1]) + joint + clauses[-1])


def _list(rng: Random, corpora: Corpora) -> str:
    match rng.randrange(4):
        case 0:
            items = [f"{rng.choice(['a', 'the', 'my'])} {one(rng, 'noun')}" for _ in range(rng.randint(3, 6))]
        case 1:
            items = [f"{rng.randint(2, 30)} {template(rng, 'plural')}" for _ in range(rng.randint(2, 5))]
        case 2:
            items = [one(rng, rng.choice(["first", "place"])) for _ in range(rng.randint(3, 6))]
        case _:
            items = [f"a {one(rng, 'adjective')} {one(rng, 'noun')}" for _ in range(rng.randint(2, 4))]
    listed = ", ".join(items[:-1]) + rng.choice([", and ", " and ", ", or "]) + items[-1]
    return sentence_of(filled(rng, template(rng, "list").replace("*", listed), corpora))


_KINDS: dict[str, Callable[[Random, Corpora], str]] = {
    "salad": _salad,
    "template": _template,
    "number": _number,
    "short": _short,
    "long": _long,
    "list": _list,
}


def _small_corpora() -> Corpora:
    lists = word_lists()
    words = sorted({word for name in ("noun", "adjective", "verb", "adverb", "technical") for word in lists[name]})
    rng = Random(0)
    nothing = Corpora([], words, words)
    return Corpora([_template(rng, nothing) for _ in range(1000)], words, words)
