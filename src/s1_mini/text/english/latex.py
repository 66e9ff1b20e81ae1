r"""LaTeX as words: formulas between `$`, `\(`, `\[`, in environments or without delimiters, and commands in text.

`$` begins a formula only if the text up to the next one is mathematics, so that "$5 and $6" stays money. All scans are
linear, and braces nest at most `MAX_DEPTH` deep; deeper ones are ignored.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence

from s1_mini.text.english.measures import UNIT, UNITS, plural
from s1_mini.text.english.numerals import cardinal, ordinal, part_of, parts_of, written
from s1_mini.text.tables import signs, table, word_set, words

MAX_DEPTH = 20
MAX_FORMULA = 2000  # characters

_GREEK = words(
    "alpha beta gamma delta epsilon zeta eta theta iota kappa lambda mu nu xi omicron pi rho sigma tau upsilon phi "
    "chi psi omega"
)
_COMMANDS = {name: name for name in _GREEK} | {name.capitalize(): name.capitalize() for name in _GREEK}
_COMMANDS |= {f"var{name}": name for name in words("epsilon theta phi rho sigma pi kappa")}
_COMMANDS |= table(
    "times=times, cdot=times, ast=times, star=star, div=divided by, pm=plus or minus, mp=minus or plus, leq=is less "
    "than or equal to, le=is less than or equal to, leqslant=is less than or equal to, geq=is greater than or equal "
    "to, ge=is greater than or equal to, geqslant=is greater than or equal to, lt=is less than, gt=is greater than, "
    "ll=is much less than, gg=is much greater than, neq=is not equal to, ne=is not equal to, approx=is "
    "approximately, simeq=is approximately, cong=is congruent to, equiv=is equivalent to, sim=is distributed as, "
    "propto=is proportional to, in=in, notin=not in, ni=contains, subset=is a subset of, subseteq=is a subset of, "
    "supset=is a superset of, supseteq=is a superset of, cup=union, cap=intersection, setminus=minus, emptyset=the "
    "empty set, varnothing=the empty set, infty=infinity, partial=partial, nabla=del, forall=for all, exists=there "
    "exists, nexists=there is no, to=to, rightarrow=to, longrightarrow=to, mapsto=maps to, leftarrow=from, "
    "Rightarrow=implies, implies=implies, Longrightarrow=implies, iff=if and only if, Leftrightarrow=if and only if, "
    "leftrightarrow=if and only if, neg=not, lnot=not, land=and, wedge=and, lor=or, vee=or, oplus=plus, "
    "otimes=times, circ=composed with, degree=degrees, angle=angle, perp=is perpendicular to, parallel=is parallel "
    "to, triangle=triangle, therefore=therefore, because=because, hbar=h bar, ell=l, prime=prime, dagger=dagger, "
    "top=transpose, bmod=mod, mod=mod, pmod=mod, ldots=dot dot dot, cdots=dot dot dot, dots=dot dot dot, vdots=dot "
    "dot dot, Re=the real part of, Im=the imaginary part of, mid=given, models=models, vdash=proves, uparrow=up, "
    "downarrow=down, colon=:, LaTeX=lah-tech, TeX=tech, sin=sine, cos=cosine, tan=tangent, cot=cotangent, "
    "sec=secant, csc=cosecant, arcsin=arc sine, arccos=arc cosine, arctan=arc tangent, sinh=hyperbolic sine, "
    "cosh=hyperbolic cosine, tanh=hyperbolic tangent, log=log, lg=log, lfloor=the floor of, rfloor=, lceil=the "
    "ceiling of, rceil=, langle=, rangle=, ln=natural log of, exp=exp, det=the determinant of, dim=the dimension of, "
    "ker=the kernel of, gcd=the greatest common divisor of, deg=the degree of, arg=arg, Pr=P, operatorname="
)
# Operators with limits below and above.
_LARGE = table(
    "sum=the sum, prod=the product, int=the integral, iint=the double integral, iiint=the triple integral, oint=the "
    "closed integral, bigcup=the union, bigcap=the intersection, lim=the limit, max=the maximum, min=the minimum, "
    "sup=the supremum, inf=the infimum, argmax=the arg max, argmin=the arg min, limsup=the limit superior, liminf=the "
    "limit inferior"
)
_ACCENTS = table(
    "hat=hat, widehat=hat, bar=bar, overline=bar, tilde=tilde, widetilde=tilde, dot=dot, ddot=double dot, "
    "vec=vector, overrightarrow=vector"
)
_TEXTS = word_set("text textbf textit textrm texttt textsf textnormal mathrm mathit operatorname mbox hbox ce")
_FRACTIONS = word_set("frac dfrac tfrac cfrac")
_BINOMIALS = word_set("binom dbinom tbinom")
_FORMATS = word_set(
    "left right big Big bigg Bigg bigl bigr Bigl Bigr displaystyle textstyle limits nolimits quad qquad mathbf "
    "mathbb mathcal mathfrak mathsf mathscr boldsymbol bm boxed underline underbrace overbrace nonumber notag "
    "middle cancel Bbb"
)
_SIGNS = signs(
    "+=plus, -=minus, −=minus, ==equals, <=is less than, >=is greater than, *=times, /=over, !=factorial, %=percent, "
    "×=times, ·=times, ≤=is less than or equal to, ≥=is greater than or equal to, ≠=is not equal to, ±=plus or minus"
)
_FUNCTIONS = words("sin cos tan log ln exp max min lim mod sup inf det arg var cov gcd deg")
_APPLIED = frozenset([*"ABCDEFGHIJKLMNOPQRSTUVWXYZfghpq", "Var"])
_SIZES = ("\\left", "\\big", "\\Big", "\\bigl", "\\Bigl", "\\bigg", "\\Bigg")
_SKIPPED = word_set(
    "class color textcolor hspace vspace phantom label tag begin end"
)  # commands whose first group is dropped
_VOWEL = re.compile("[aeiouy]", re.IGNORECASE)
_TOKEN = re.compile(
    r"\\(?:[A-Za-z]++\*?+|[\s\S])|[A-Za-z]++|\d++(?:,\d{3}(?!\d))*+(?:\.\d++)?+|\.\d++|\s++|.", re.DOTALL
)
_COMPOUND = frozenset(("plus", "minus", "equals", "plus or minus"))
_OPERATORS = frozenset(_SIGNS.values()) | {"(", "[", ","}
_SPACE_BEFORE = re.compile(r" (?=[,.;:!?)\]])|(?<=[(\[]) ")
_ENDINGS = ("th", "st", "nd", "rd")


_Reader = Callable[["_Formula", str, Sequence[str]], list[str]]  # name, words read before


class _Formula:
    """Parser of one formula."""

    def __init__(self, text: str) -> None:
        self.tokens = _TOKEN.findall(text.replace("{,}", ","))
        self.at = 0
        self.depth = 0
        self.brackets: list[str] = []  # open parentheses, absolute values and sets

    def read(self) -> str:
        said = " ".join(part for part in self.until("") if part)
        return re.sub(r"^[ ,]+|[ ,]+$", "", re.sub(r",(?: ,)+", ",", _SPACE_BEFORE.sub("", said)))

    def peek(self) -> str:
        """Return the next symbol that is not white space; empty at the end."""
        while self.at < len(self.tokens) and self.tokens[self.at].isspace():
            self.at += 1
        return self.tokens[self.at] if self.at < len(self.tokens) else ""

    def take(self) -> str:
        symbol = self.peek()
        self.at += 1
        return symbol

    def until(self, end: str) -> list[str]:
        said: list[str] = []
        while (symbol := self.peek()) and symbol != end:
            self.at += 1
            said += [part for part in self.item(symbol, said) if part]
        self.at += bool(symbol)
        return said

    def group(self, end: str = "}") -> list[str]:
        """Read up to `end`; nested too deep, read nothing of its structure."""
        if self.depth >= MAX_DEPTH:
            return []
        self.depth += 1
        brackets, self.brackets = self.brackets, []
        said = self.until(end)
        self.depth, self.brackets = self.depth - 1, brackets
        return said

    def argument(self, *, is_script: bool = False) -> list[str]:
        symbol = self.take()
        if symbol == "{":
            return self.group()
        if symbol[:1].isalpha() and symbol.isascii():
            self.divide(symbol)
            return [symbol[:1]]
        if symbol[:1].isdigit() and not is_script and len(symbol) > 1:
            self.divide(symbol)
            return [cardinal(int(symbol[0]))]
        if is_script and symbol in ("-", "+") and self.peek()[:1].isdigit():
            return [_SIGNS[symbol], written(self.take())]
        if self.depth >= MAX_DEPTH or not symbol:
            return []
        self.depth += 1
        said = self.item(symbol, [])
        self.depth -= 1
        return said

    def divide(self, symbol: str) -> None:
        """Put all but the first character of the symbol just read back, as a symbol."""
        if len(symbol) > 1:
            self.tokens[self.at - 1 : self.at] = [symbol[0], symbol[1:]]

    def raw(self) -> str:
        """Return the characters of a group as they are written, without commands and inner braces."""
        if self.peek() != "{":
            return self.take()
        start, depth = self.at, 0
        while self.at < len(self.tokens):
            symbol = self.tokens[self.at]
            depth += (symbol == "{") - (symbol == "}")
            self.at += 1
            if not depth:
                break
        inner = self.tokens[start + 1 : self.at - 1]
        return "".join(each for each in inner if each not in "{}$" and not re.match(r"\\[A-Za-z]", each))

    def item(self, symbol: str, before: Sequence[str]) -> list[str]:
        """Read one symbol with its arguments; `before` is what was read before it."""
        if symbol[0] == "\\":
            return self.command(symbol[1:].removesuffix("*"), before)
        if symbol[0].isdigit() or symbol[0] == ".":
            return self.number(symbol)
        if symbol.isalpha() and symbol.isascii():
            return self.letters(symbol)
        reader = _MARKS.get(symbol)
        return [_SIGNS.get(symbol, symbol)] if reader is None else reader(self, symbol, before)

    def opening(self, mark: str, before: Sequence[str]) -> list[str]:
        is_function = before and before[-1] in _APPLIED and (mark == "(" or before[-1] in ("E", "Var"))
        self.brackets.append("of" if is_function else mark)
        if is_function:
            return ["of"]
        is_product = before and _is_factor(before[-1]) and "sub" not in before[-2:-1] and not self.is_plain()
        return ["times", mark] if is_product else [mark]

    def closing(self, mark: str, _: Sequence[str]) -> list[str]:
        return [] if self.brackets and self.brackets.pop() == "of" else [mark]

    def number(self, symbol: str) -> list[str]:
        if self.peek() == "/" and symbol.isdecimal():
            at = self.at
            self.at += 1
            below = self.peek()
            if below.isdecimal() and (said := _fraction(symbol, below)):
                self.at += 1
                return [said]
            self.at = at
        if symbol == "." or not any(map(str.isdecimal, symbol)):
            return [symbol]
        return [written(symbol)]

    def letters(self, symbol: str) -> list[str]:
        if symbol in _FUNCTIONS:
            return self.command(symbol, ())
        is_word = (
            len(symbol) > 3 - (self.depth > 0) and _VOWEL.search(symbol) and (symbol.islower() or symbol.istitle())
        )
        said = [symbol] if is_word else list(symbol)
        return [*said, *self.apply(symbol[-1].isupper() or symbol[-1] in "fghpq")]

    def apply(self, is_function: bool) -> list[str]:
        """Read the parenthesis after a function, also after its primes, as "of"."""
        said = []
        while self.peek() == "'":
            self.at += 1
            said.append("prime")
        at = self.at
        if (opener := self.peek()) in _SIZES:
            self.at += 1
            opener = self.peek()
        if opener != "(":
            self.at = at
        elif is_function or said or self.is_plain(1):
            self.at += 1
            self.brackets.append("of")
            said.append("of")
        return said

    def is_plain(self, skip: int = 0) -> bool:
        """Return whether the parenthesis that follows has only x or t, or a list."""
        inside = "".join(self.tokens[self.at + skip : self.at + skip + 6]).partition(")")
        return bool(inside[1]) and re.fullmatch(r"\A(?:[xt]|[^-+,]*+,[^-+]*+)", inside[0]) is not None

    def script(self, mark: str, before: Sequence[str]) -> list[str]:
        start = self.at
        said = self.argument(is_script=True)
        raw = "".join(self.tokens[start : self.at]).strip(" {}\\")
        after = self.apply(bool(before) and before[-1] in (_APPLIED if mark == "_" else "fghF"))
        if mark == "_":
            return ["base", *said, "of"] if before and before[-1] == "log" else ["sub", *said, *after]
        if raw in ("2", "3"):
            return ["squared" if raw == "2" else "cubed", *after]
        if raw in ("circ", "degree"):
            return ["degrees"]
        if raw in ("T", "top", "*", "+", "-", "prime", "dagger", "intercal"):
            return [{"T": "transpose", "*": "star", "intercal": "transpose"}.get(raw) or " ".join(said), *after]
        if raw.removeprefix("text{") in _ENDINGS and before:
            return [f"-{raw[-2:]}"]
        return [f"to the power of {' '.join(said)}" + "," * (not _COMPOUND.isdisjoint(said)), *after]

    def bar(self, name: str, before: Sequence[str]) -> list[str]:
        if "bar" in self.brackets:
            while self.brackets.pop() != "bar":
                pass
            return [","] if self.peek() else []
        if before and before[-1] not in (*_OPERATORS, "of") and self.brackets:
            return _given(self, name, before)
        self.brackets.append("bar")
        return ["the norm of" if name.endswith("Vert") else "the absolute value of"]

    def command(self, name: str, before: Sequence[str]) -> list[str]:
        if reader := _READERS.get(name):
            return reader(self, name, before)
        if name == "sim" and (not before or before[-1] in _OPERATORS):
            return ["about"]
        said = _COMMANDS.get(name, _SIGNS.get(name, name if len(name) > 1 else ""))
        applied = self.apply(name in ("Pr", *_FUNCTIONS) or name.lower() in _GREEK)
        return [said.removesuffix(" of") if "of" in applied else said, *applied]


def _choose(formula: _Formula, _: str, __: Sequence[str]) -> list[str]:
    return [*formula.argument(), "choose", *formula.argument()]


def _accent(formula: _Formula, name: str, _: Sequence[str]) -> list[str]:
    inner = formula.argument()
    return ["vector", *inner] if _ACCENTS[name] == "vector" else [*inner, _ACCENTS[name]]


def _skip(formula: _Formula, name: str, _: Sequence[str]) -> list[str]:
    """Drop the first group; the begin and the end of an environment are a pause."""
    formula.raw()
    return [","] if name in ("begin", "end") else []


def _format(formula: _Formula, name: str, _: Sequence[str]) -> list[str]:
    if name in ("left", "right", "middle") and formula.peek() == ".":
        formula.at += 1
    return []


def _given(formula: _Formula, _: str, __: Sequence[str]) -> list[str]:
    return ["such that" if formula.brackets[-1:] == ["set"] else "given"]


def _set(formula: _Formula, name: str, _: Sequence[str]) -> list[str]:
    if name == "{":
        formula.brackets.append("set")
        return ["the set of"]
    if "set" in formula.brackets:
        while formula.brackets.pop() != "set":
            pass
    return []


def _over(formula: _Formula, _: str, __: Sequence[str]) -> list[str]:
    start = formula.at
    above = formula.argument()
    middle = formula.at
    below = formula.argument()
    numbers = ["".join(formula.tokens[a:b]).strip(" {}") for a, b in ((start, middle), (middle, formula.at))]
    if said := _fraction(*numbers):
        return [said]
    return [*above, *([","] if not _COMPOUND.isdisjoint(above) else []), "over", *below]


def _root(formula: _Formula, _: str, __: Sequence[str]) -> list[str]:
    degree = "square"
    if formula.peek() == "[":
        formula.at += 1
        start = formula.at
        said = formula.group("]")
        raw = "".join(formula.tokens[start : formula.at - 1]).strip()
        degree = {"2": "square", "3": "cube"}.get(raw) or (
            ordinal(int(raw)) if raw.isdecimal() and 0 < int(raw) < 100 else f"{' '.join(said)}-th"
        )
    inner = formula.argument()
    return [f"the {degree} root of", *inner, *([","] if not _COMPOUND.isdisjoint(inner) else [])]


def _large(formula: _Formula, name: str, _: Sequence[str]) -> list[str]:
    lower: list[str] = []
    upper: list[str] = []
    while formula.peek() in ("_", "^", "\\limits", "\\nolimits"):
        mark = formula.take()
        if mark == "_":
            lower = formula.argument(is_script=True)
        elif mark == "^":
            upper = formula.argument(is_script=True)
    is_limit = name.startswith("lim")
    if not lower and not upper and not is_limit and name in ("max", "min", "sup", "inf"):
        return [name, *formula.apply(True)] if formula.peek() == "(" else [name]
    said = [_LARGE[name]]
    if is_limit and lower:
        said += ["as", *("approaches" if each == "to" else each for each in lower)]
    elif lower and upper:
        said += ["from", *lower, "to", *upper]
    elif lower:
        said += ["over", *lower]
    return [*said, "of"]


def _text(formula: _Formula, _: str, before: Sequence[str]) -> list[str]:
    raw = " ".join(formula.raw().split())
    if before and raw in UNITS and (before[-1].replace("-", "").replace(" ", "").isalpha()) and len(before[-1]) > 1:
        return [UNITS[raw] if before[-1] == "one" else plural(UNITS[raw])]
    return [raw, *formula.apply(True)] if raw else []


def _constant(*said: str) -> _Reader:
    return lambda *_: list(said)


_MARKS: dict[str, _Reader] = {
    **dict.fromkeys("^_", _Formula.script),
    **dict.fromkeys("([", _Formula.opening),
    **dict.fromkeys(")]", _Formula.closing),
    **dict.fromkeys("{}&~", _constant()),
    "'": _constant("prime"),
    "|": _Formula.bar,
}
_READERS: dict[str, _Reader] = {
    **dict.fromkeys(_FRACTIONS, _over),
    **dict.fromkeys(_BINOMIALS, _choose),
    **dict.fromkeys(_LARGE, _large),
    **dict.fromkeys(_TEXTS, _text),
    **dict.fromkeys(_ACCENTS, _accent),
    **dict.fromkeys(_FORMATS, _format),
    **dict.fromkeys(_SKIPPED, _skip),
    **dict.fromkeys(words("Vert lVert rVert vert lvert rvert"), _Formula.bar),
    "|": lambda formula, _, before: formula.bar("Vert", before),
    **dict.fromkeys(("\\", "newline"), _constant(",")),
    **dict.fromkeys("{}", _set),
    "sqrt": _root,
    "mid": _given,
}

_KNOWN = frozenset(_COMMANDS) | frozenset(_READERS)


def _is_factor(word: str) -> bool:
    return (len(word) == 1 and word.isalpha()) or word == ")" or word.partition("-")[0] in _NUMBERS


_NUMBERS = frozenset(cardinal(number) for number in (*range(20), *range(20, 100, 10)))


def _fraction(above: str, below: str) -> str:
    """Return a fraction of two small numbers as words; otherwise an empty string."""
    if not (above.isdecimal() and below.isdecimal() and len(above + below) <= 6):
        return ""
    if not (1 <= int(above) <= 19 and 2 <= int(below) <= 1000):
        return ""
    return f"{cardinal(int(above))} {part_of(int(below)) if int(above) == 1 else parts_of(int(below))}"


def _say(formula: str) -> str:
    return _Formula(formula).read()


_DELIMITER = re.compile(r"\\[\s\S]|\$\$?")
_BRACKETED = re.compile(r"\\([(\[])((?:[^\\]|\\[^()\[\]]){0,500}+)\\[)\]]")
_BLANK_LINE = re.compile(r"\n[ \t]*+\n")
_SPECIAL = re.compile(r"[\\^_{}]")
_LETTERS = re.compile(r"(?:d?[A-Za-z](?![A-Za-z])|\d++(?:\.\d++)?+|[(),.:;'! \[\]])++")
_PLAIN = re.compile(r"(?:[A-Za-z]{1,3}(?![A-Za-z])|\d++(?:\.\d++)?+|[-+*/=<>()|!,.:;' \[\]])++")
_OPERATOR = re.compile(r"[=<>+*/|-]")
_NUMBER = re.compile(r"_?\d++")  # a plain number; the index of a chemical formula
_PROSE = re.compile(r"[A-Za-z]{2} [A-Za-z]{2}")
_ENVIRONMENT = re.compile(
    r"\\begin\{((?:equation|align(?:ed|at)?|gather(?:ed)?|multline|split|cases|eqnarray|displaymath|math|[pbvBV]?matrix)\*?)\}"
)
_STYLED = re.compile(r"\\(?:text(?:bf|it|tt|sc|sf|rm|up)|emph|underline)\{([^{}\n]*+)\}")
_TITLED = re.compile(r"\\(?:chapter|(?:sub){0,2}section|title|caption|paragraph)\*?+\{([^{}\n]*+)\}[ \t]*+")
_DROPPED = re.compile(
    r"\\(?:cite[pt]?|label|(?:eq|auto|page|[cC])?ref|index|documentclass|usepackage|maketitle|centering|noindent|newpage|(?:begin|end)\{(?:document|"
    r"itemize|enumerate|center|quote|abstract|figure|table|theorem|proof|lemma|definition)\})"
    r"(?![A-Za-z])(?:\[[^\[\]\n]*+\])?+(?:\{[^{}\n]*+\})?+"
)
_LISTED = re.compile(r"(^|(?<![ \t\n]))[ \t]*+\\item(?![A-Za-z])[ \t]*+", re.MULTILINE)
_REFERENCE = re.compile(r"\b(Eq|Fig|Sec|Tab|Thm|Ch)s?\.?[~ ]\(?\\(?:eq|auto|[cC])?ref\{[^{}\n]*+\}\)?")
_REFERENCES = table("Eq=Equation, Fig=Figure, Sec=Section, Tab=Table, Thm=Theorem, Ch=Chapter")
_BARE = re.compile(
    r"(?P<command>\\[A-Za-z]++)|(?P<sign>\\[,;:!{}|\\% ])|(?P<brace>[{}])|(?P<script>[\^_])|(?P<word>[A-Za-z]++)|"
    r"(?P<number>\d++(?:[.,]\d++)*+)|(?P<space>[ \t]++)|(?P<operator>[-+*/=<>()\[\]|!,'&])|(?P<other>[\s\S])"
)
_THIN_SPACE = re.compile(r"(?<=[\w%])\\[,;](?=\w)")
_QUANTITY = re.compile(  # a formula that ends in a number before a unit
    r"(\$(?=[^$\n]{0,80}[\\^])[^$\n]{1,100}+(?<=[\d}])\$ ?|\\(?:approx|sim|pm|leq?|geq?|times) ?\d[\d.,]*+ ?)"
    rf"(?!in\b|pt\b|bar\b)({UNIT})(?![\w/²³^'·-])"
)
_LEADING = re.compile(r"(?:[ ,:=+*/!'&<>)\]]|-(?= ))*+")


def read_latex(text: str) -> str:
    """Read formulas as words, and remove the commands of LaTeX texts. Other text stays as written."""
    if "\\" in text or "^" in text:
        text = _QUANTITY.sub(lambda found: found[1] + plural(UNITS[found[2]]), text)
    text = _read_dollars(text) if text.count("$") > 1 else text
    if "\\" in text:
        text = _BRACKETED.sub(_bracketed, _read_environments(text))
        text = _REFERENCE.sub(lambda found: _REFERENCES[found[1]], text)
        text = _LISTED.sub(_listed, _DROPPED.sub("", _TITLED.sub(r"\1.\n", _STYLED.sub(r"\1", text))))
    text = _THIN_SPACE.sub(" ", text)
    return _read_bare(text) if "\\" in text or "^{" in text or "_{" in text else text


def _listed(found: re.Match[str]) -> str:
    start = found.start()
    return "- " if start == 0 or found.string[start - 1] == "\n" else "\n- "


def _is_math(formula: str) -> bool:
    if not formula or len(formula) > MAX_FORMULA or _BLANK_LINE.search(formula) or formula[-1] in "_^":
        return False
    if _SPECIAL.search(formula):
        return "\\" in formula or "{" in formula or _PROSE.search(formula) is None
    plain = _PLAIN if _OPERATOR.search(formula) else _LETTERS
    return plain.fullmatch(formula) is not None and any(map(str.isalnum, formula))


def _put(text: str, start: int, end: int, said: str) -> str:
    """Separate the words of a formula from letters and digits that touch it."""
    before, after = text[max(0, start - 1) : start], text[end : end + 2]
    is_glued = after[:1].isalnum() and after not in _ENDINGS
    return " " * before.isalnum() + said + " " * is_glued


def _read_dollars(text: str) -> str:
    marks = [found for found in _DELIMITER.finditer(text) if found.group()[0] == "$"]
    parts: list[str] = []
    done = number = 0
    while number + 1 < len(marks):
        first, last = marks[number : number + 2]
        formula = text[first.end() : last.start()]
        if first.group() == last.group() and _is_delimited(text, formula, first, last):
            said = formula.lstrip("_") if _NUMBER.fullmatch(formula) else _say(formula)
            parts += [text[done : first.start()], _put(text, first.start(), last.end(), said)]
            done, number = last.end(), number + 1
        number += 1
    return "".join([*parts, text[done:]])


def _is_delimited(text: str, formula: str, first: re.Match[str], last: re.Match[str]) -> bool:
    if not _is_math(formula.strip()):
        return False
    if first.group() == "$$":
        return True
    before, after = text[max(0, first.start() - 1) : first.start()], text[last.end() : last.end() + 2]
    is_script = formula[0] in "^_"  # m/s$^2$
    is_tight = not (formula[0].isspace() or formula[-1].isspace()) and (is_script or not before.isalnum())
    is_ended = not (after[:1].isalnum() or after[:1] in ("_", "{")) or after in _ENDINGS
    return is_tight and (is_ended or is_script or ("\\" in formula and not after[:1].isdecimal()))


def _bracketed(found: re.Match[str]) -> str:
    formula = found[2].strip()
    return _put(found.string, *found.span(), _say(formula)) if _is_math(formula) else found.group()


def _read_environments(text: str) -> str:
    parts: list[str] = []
    done = 0
    for found in _ENVIRONMENT.finditer(text):
        closing = rf"\end{{{found[1]}}}"
        end = text.find(closing, found.end(), found.end() + MAX_FORMULA)
        if found.start() >= done and end >= 0:
            parts += [text[done : found.start()], f" {_say(text[found.end() : end])} "]
            done = end + len(closing)
    return "".join([*parts, text[done:]])


def _read_bare(text: str) -> str:
    """Read runs of symbols, letters and numbers that contain a command of mathematics or a script in braces."""
    parts: list[str] = []
    done = start = end = depth = 0
    is_open = has_command = False
    before = "other"
    for found in _BARE.finditer(text):
        kind, symbol = found.lastgroup or "", found.group()
        if not is_open and not depth:
            start, has_command = found.start(), False
            is_open = start == 0 or before == "space" or text[start - 1] in "\n([\"',;"
        belongs = is_open and _belongs(kind, symbol, before, depth, found)
        if belongs and kind == "brace":
            depth += 1 if symbol == "{" else -1
        has_command |= belongs and (
            kind == "command" or (kind == "script" and found.string[found.end() : found.end() + 1] == "{")
        )
        if belongs and found.end() - start <= MAX_FORMULA:
            end = found.end()
        else:
            if is_open and has_command and not depth:
                parts, done = _bare(text, start, end, parts, done)
            is_open, depth, has_command = False, 0, False
        before = kind
    if is_open and has_command and not depth:
        parts, done = _bare(text, start, end, parts, done)
    return "".join([*parts, text[done:]])


def _bare(text: str, start: int, end: int, parts: list[str], done: int) -> tuple[list[str], int]:
    start = _LEADING.match(text, start, end).end()  # type: ignore[union-attr]
    while end > start and text[end - 1] in " ,'&-":
        end -= 1
    return [*parts, text[done:start], _put(text, start, end, _say(text[start:end]))], end


def _belongs(kind: str, symbol: str, before: str, depth: int, found: re.Match[str]) -> bool:
    """Return whether a symbol continues a formula without delimiters."""
    if depth:
        return kind != "other" or symbol not in "\n\r"
    if kind == "command":
        return symbol[1:] in _KNOWN
    if kind == "brace":
        return symbol == "{" and before in ("command", "script", "brace")
    if kind == "word":
        after = found.string[found.end() : found.end() + 1]
        is_factor = len(symbol) <= 3 and (after in tuple("^_") or before in ("command", "number", "brace", "sign"))
        is_differential = len(symbol) == 2 and symbol[0] == "d" and symbol[1] in "rstuvwxyz"
        return len(symbol) == 1 or symbol in _FUNCTIONS or is_factor or is_differential
    if kind == "script":
        return before in ("word", "number", "brace", "command", "operator")
    return kind != "other"
