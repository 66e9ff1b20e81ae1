"""English abbreviations: titles, streets, months and days, Latin, and other words that end in a dot."""

from __future__ import annotations

import re

from s1_mini.text.english.dates import DAYS, MONTHS
from s1_mini.text.tables import table, text_after, text_before

_SHORT_MONTHS = {month[:3]: month for month in MONTHS} | {"Sept": "September"}
_SHORT_DAYS = {day[:3]: day for day in DAYS} | {"Tues": "Tuesday", "Thur": "Thursday", "Thurs": "Thursday"}

_TITLES = table(
    "Mr=Mister, Mrs=Missus, Ms=Ms, Messrs=Messieurs, Prof=Professor, Rev=Reverend, Hon=Honorable, Gen=General, "
    "Col=Colonel, Capt=Captain, Cmdr=Commander, Lt=Lieutenant, Sgt=Sergeant, Maj=Major, Gov=Governor, Sen=Senator, "
    "Rep=Representative, Pres=President, Mt=Mount, Ft=Fort, Adm=Admiral, Fr=Father, Amb=Ambassador, Atty=Attorney, "
    "Pfc=Private First Class, Pt=Point, Ste=Sainte, Dir=Director, Asst=Assistant, Assoc=Associate, Attn=Attention, "
    "Wm=William, Geo=George, Chas=Charles, Thos=Thomas, Jas=James, Supt=Superintendent, Cpl=Corporal, Pvt=Private"
)
_STREETS = table(
    "St=Street, Dr=Drive, Ave=Avenue, Blvd=Boulevard, Rd=Road, Ln=Lane, Ct=Court, Pl=Place, Sq=Square, "
    "Hwy=Highway, Pkwy=Parkway, Ter=Terrace"
)
_BEFORE_NUMBER = table(
    "no=number, nos=numbers, p=page, pp=pages, ch=chapter, chap=chapter, vol=volume, vols=volumes, fig=figure, "
    "figs=figures, sec=section, eq=equation, art=article, para=paragraph, app=appendix, apt=apartment, ste=suite, "
    "ext=extension, tel=telephone, est=established, rm=room, bldg=building, fl=floor, rte=route, rt=route, "
    "jct=junction, ref=reference, tbl=table, qty=quantity, ca=circa, c=circa, approx=approximately, op=opus, "
    "ver=version"
)
_ANYWHERE = table(
    "etc=et cetera, e.g=for example, i.e=that is, vs=versus, cf=compare, viz=namely, approx=approximately, "
    "dept=department, govt=government, misc=miscellaneous, inc=Incorporated, ltd=Limited, corp=Corporation, "
    "co=Company, bros=Brothers, jr=Junior, sr=Senior, al=al, a.k.a=also known as, ph.d=P H D, ave=Avenue, "
    "blvd=Boulevard, hwy=Highway, pkwy=Parkway, dist=district, univ=university, assn=association, intl=international, "
    "natl=national, avg=average, temp=temperature, esq=Esquire, hosp=hospital, assoc=associate, asst=assistant, "
    "mgr=manager, incl=including, excl=excluding, qty=quantity, pkg=package, doz=dozen, attn=attention, hrs=hours, "
    "mins=minutes, secs=seconds, wk=week, wks=weeks, yrs=years, std=standard, orig=original, alt=alternate, "
    "mts=mountains, w.r.t=with respect to, s.t=such that, ea=each, rm=room, bldg=building, eds=editors"
)
_SLASHED = table(
    "w/o=without, w/=with, b/c=because, 24/7/365=twenty-four seven three sixty-five, c/o=care of, w/out=without, "
    "n/a=not applicable, and/or=and or, and/or/not=and or not, a/c=A C, he/she=he or she, she/he=she or he, "
    "his/her=his or her, him/her=him or her, s/he=he or she, yes/no=yes or no, either/or=either or, tcp/ip=T C P I P"
)
_STATES = table(
    "AL=Alabama, AK=Alaska, AZ=Arizona, AR=Arkansas, CA=California, CO=Colorado, CT=Connecticut, DE=Delaware, "
    "FL=Florida, GA=Georgia, HI=Hawaii, ID=Idaho, IL=Illinois, IN=Indiana, IA=Iowa, KS=Kansas, KY=Kentucky, "
    "LA=Louisiana, ME=Maine, MD=Maryland, MA=Massachusetts, MI=Michigan, MN=Minnesota, MS=Mississippi, "
    "MO=Missouri, MT=Montana, NE=Nebraska, NV=Nevada, NH=New Hampshire, NJ=New Jersey, NM=New Mexico, NY=New "
    "York, NC=North Carolina, ND=North Dakota, OH=Ohio, OK=Oklahoma, OR=Oregon, PA=Pennsylvania, RI=Rhode Island, "
    "SC=South Carolina, SD=South Dakota, TN=Tennessee, TX=Texas, UT=Utah, VT=Vermont, VA=Virginia, WA=Washington, "
    "WV=West Virginia, WI=Wisconsin, WY=Wyoming, DC=D C"
)


def _one_of(words: dict[str, str]) -> str:
    return "|".join(re.escape(word) for word in sorted(words, key=len, reverse=True))


_SLASHED_FORM = re.compile(rf"(?<![\w/])(?:{_one_of(_SLASHED)})(?![\w/])", re.IGNORECASE)
_STATE = re.compile(rf"(?<=, )({_one_of(_STATES)})(?= \d{{5}}(?!\d))")
_SAINT_OR_DOCTOR = re.compile(r"(?<![\w.'-])(St|Dr)\b(\.?)(?=\s+[A-Z])")
_STREET = re.compile(rf"(?<=[\w.] )({_one_of(_STREETS)})\b(\.?)(?!\w|'\w)")
_TITLE = re.compile(
    rf"(?<![\w.'-])({_one_of(_TITLES)})"
    r"(?:\.(?=\s+(?:[A-Z]|and\b))|(?:(?<=M[rs])|(?<=Mrs)|(?<=Prof))(?=\s+[A-Z]))"
)
_DAY = re.compile(
    rf"(?<![\w.'-])({_one_of(_SHORT_DAYS)})"
    rf"(?:(?<!Sun)(?<!Sat)\.(?!\w)|\.?(?=,?\s(?:\d|(?:{'|'.join(_SHORT_MONTHS)}))))"
)
_SHORT = _SHORT_DAYS | _SHORT_MONTHS
_SPAN = re.compile(rf"(?<![\w.'-])({_one_of(_SHORT)})\.?\s?[-–]\s?({_one_of(_SHORT)})\b\.?")
_MONTH = re.compile(
    rf"(?<![\w.'-])({_one_of(_SHORT_MONTHS)})"
    rf"(?:(?<=\d [A-Z]..)(?<!May)(?!\w)\.?|(?<!May)\.|(?=\s(?:\d{{1,2}}(?:st|nd|rd|th)?|\d{{4}}|'\d\d)(?![\w:.%])))"
)
_NUMBERED = re.compile(
    rf"(?<![\w.'-])({_one_of(_BEFORE_NUMBER)})\.\s?(?=\d|[A-Z]{{1,4}}\d|[IVX]{{2,6}}\b|[VX]\b)|№\s?(?=\d)",
    re.IGNORECASE,
)
_LOWER = re.compile(r"(?<![\w.'-])(?<!\d )(min|max)\.(?=,?\s(?:\d|and|or|to|of|at|is|[a-z]{3,})|\s?$)", re.MULTILINE)
_EDITION = re.compile(r"(?<=\d(?:st|nd|rd|th) )(ed|fl)\.|(?<=\b(?:first|third|sixth) )(ed|fl)\.")
_DEGREE = re.compile(
    r"(?<![\w.'-])([BM])\.(Sc|Eng|Ed|Tech|Com|Arch|Phil)\.|(?<![\w.'-])(D)\.(Phil|Sc)\.|(?<![\w.'-])(LL)\.([BM])\."
)
_OFFICE = re.compile(r"\b(Sec|Dir)\.(?= (?:of|Gen)\b)")
_DAY_PAIR = re.compile(r"(?<![\w.'-])(Sat|Sun)\.?(?= ?(?:&|and|/) (?:Sat|Sun|Mon|Fri))|(?<=[&/] )(Sat|Sun)\.(?!\w)")
_AT_START = re.compile(r"^(Min|Max)\.(?= [a-z\d])", re.MULTILINE)
_DAY_AFTER = re.compile(r"(?<=day and )(Sat|Sun)\.(?!\w)")
_UNDOTTED_NUMBERED = re.compile(r"\b([Bb]ldg|[Rr]te|[Rr]m|[Qq]ty)(:?) (?=#?\d)")
_SLASHED_DAYS = re.compile(rf"(?<![\w/])((?:{_one_of(_SHORT_DAYS)})(?:/(?:{_one_of(_SHORT_DAYS)})){{1,6}})(?![\w/])")
_SLASHED_TITLES = re.compile(r"(?<![\w/])(Mr|Mrs|Ms|Dr)\.?/(Mr|Mrs|Ms|Dr)\b")
_DOTTED = re.compile(rf"(?<![\w.'-])({_one_of(_ANYWHERE)})\.(?!\w)", re.IGNORECASE)
_UNDOTTED = re.compile(r"(?<![\w./'-])(vs|etc|e\.g|i\.e)(?![\w./])")
_LETTERS = re.compile(r"(?<![\w.'-])((?:[A-Za-z]\.){2,10})(?:([A-Za-z])(?![\w.]))?")
_INITIAL = re.compile(r"(?<![\w.'-])([A-Z])\.(?=\s?[A-Z](?:\.|[a-z]))")
_INITIAL_BEFORE = re.compile(r"(?:^|[\n(\"'“,;:]|\b(?:by|and|with|from|of|to|for|[A-Z][\w'-]{0,40}\.?))\s*$")
_LETTERED = re.compile(r"\b(?:Plan|Vitamin|Type|Group|Class|Grade|Section|Appendix|Figure|Part|Option|Team|Point)\s$")
_ENDS_HERE = re.compile(r"\s*$|\s*\n|[\"')\]]+(?:\s|$)|\s+[\"'(]?(?:[A-Z](?![A-Z]*\b)|[AI](?: [a-z]|'))")
_BEGINS = re.compile(
    r"\s(?:I|It|He|She|We|They|You|The|This|That|These|Those|There|Then|But|And|So|If|In|On|At|My|Our|His|Her|Its|Your|"
    r"Their|Do|Does|Did|Don't|What|When|Where|Who|Why|How|Please|After|Before|Now|No|Yes|Not)\b"
)
DIRECTIONS = table("N=North, S=South, E=East, W=West")
_ANY_STREET = rf"(?:{_one_of(_STREETS)}|{'|'.join(_STREETS.values())})\b"
_DIRECTION = re.compile(
    rf"(?<=\d )([NSEW])\.?(?= (?:[A-Z]\w{{1,20}} ){{1,3}}{_ANY_STREET})"
    rf"|(?<![\w.'-])([NSEW])\.?(?= \d{{1,3}}(?:st|nd|rd|th) {_ANY_STREET})"
)


_TITLED = _TITLES | {"Dr": "Doctor"}


def _cased(said: str, like: str) -> str:
    return said[0].upper() + said[1:] if like[:1].isupper() else said


def _stop(found: re.Match[str]) -> str:
    """Return a full stop if an abbreviation's final dot also ends the sentence, otherwise an empty string."""
    return "." if found.group().endswith(".") and _ENDS_HERE.match(found.string, found.end()) else ""


def _latin_stop(found: re.Match[str]) -> str:
    """Return the full stop as `_stop` does, except after abbreviations that never end a sentence, such as e.g."""
    return "" if found[1].lower() in ("vs", "e.g", "i.e", "cf", "viz", "approx") else _stop(found)


def _street(found: re.Match[str]) -> str:
    before = text_before(found, 40).split()
    named = before and (before[-1][0].isupper() or re.fullmatch(r"\d+(?:st|nd|rd|th)", before[-1]))
    after = text_after(found, 2)
    if not named or (after[:1] == " " and after[1:].isupper() and not found[2]):
        return found.group()
    return _STREETS[found[1]] + _stop(found)


def _saint_or_doctor(found: re.Match[str]) -> str:
    """Distinguish St. John from John St., and Dr. Smith from Elm Dr. (which `_street` reads), by the preceding text."""
    before = text_before(found, 60)
    address = re.search(r"\b(?:on|at|down|up|along|\d+\w?)\s(?:[NSEW]\.?\s)?(?:[A-Z]\w*\s){1,3}$", before)
    if address and not re.search(r"\b(?:St|Saint)\.?\s$", before):
        return found.group()
    return "Saint" if found[1] == "St" else "Doctor"


def _initial(found: re.Match[str]) -> str:
    before = text_before(found, 45)
    is_name = _INITIAL_BEFORE.search(before) and not _LETTERED.search(before)
    is_name = is_name and not _BEGINS.match(found.string, found.end())
    return f"{found[1]} " if is_name else found.group()


def _letters(found: re.Match[str]) -> str:
    said = found[1].replace(".", " ").strip()
    if said.lower() in ("a m", "p m", "b c", "a d"):
        said = said.upper()
    elif found[1].lower() in ("e.g.", "i.e."):
        return found.group()
    said = f"{said} {found[2]}" if found[2] else said
    return said + ("" if found[2] else _stop(found))


def read_abbreviations(text: str) -> str:
    """Write abbreviations out; keep a dot that also ends the sentence."""
    if "/" in text:
        text = _SLASHED_DAYS.sub(lambda found: " ".join(_SHORT_DAYS[each] for each in found[1].split("/")), text)
        text = _SLASHED_TITLES.sub(lambda found: " or ".join(_TITLED[each] for each in found.groups()), text)
        text = _SLASHED_FORM.sub(lambda found: _cased(_SLASHED[found.group().lower()], found.group()), text)
    text = _DAY_PAIR.sub(lambda found: _SHORT_DAYS[found[1] or found[2]], text)
    text = _DAY_AFTER.sub(lambda found: _SHORT_DAYS[found[1]], text)
    text = _UNDOTTED_NUMBERED.sub(
        lambda found: f"{_cased(_BEFORE_NUMBER[found[1].lower()], found[1])}{found[2]} ", text
    )
    text = _STATE.sub(lambda found: _STATES[found[1]], text)
    text = _DIRECTION.sub(lambda found: DIRECTIONS[found[1] or found[2]], text)
    text = _SAINT_OR_DOCTOR.sub(_saint_or_doctor, text)
    text = _STREET.sub(_street, text)
    text = _SPAN.sub(lambda found: f"{_SHORT[found[1]]} to {_SHORT[found[2]]}", text)
    text = _TITLE.sub(lambda found: _TITLES[found[1]], text)
    text = _DAY.sub(lambda found: _SHORT_DAYS[found[1]], text)
    text = _MONTH.sub(lambda found: _SHORT_MONTHS[found[1]] + _stop(found), text)
    if "." not in text and "№" not in text:
        return _UNDOTTED.sub(lambda found: _ANYWHERE[found[1]], text)
    text = _OFFICE.sub(lambda found: "Secretary" if found[1] == "Sec" else "Director", _DEGREE.sub(_degree, text))
    text = _EDITION.sub(lambda found: ("edition" if "ed" in found.groups() else "floor") + _stop(found), text)
    text = _NUMBERED.sub(_numbered, text)
    text = _AT_START.sub(r"\1imum", text)
    text = _LOWER.sub(lambda found: f"{found[1]}imum" + _stop(found), text)
    text = _DOTTED.sub(lambda found: _cased(_ANYWHERE[found[1].lower()], found[1]) + _latin_stop(found), text)
    text = _UNDOTTED.sub(lambda found: _ANYWHERE[found[1]], text)
    return re.sub(r"  +", " ", _INITIAL.sub(_initial, _LETTERS.sub(_letters, text)))


def _degree(found: re.Match[str]) -> str:
    """Read B.Sc. as letters, and longer degrees as they are written: B.Eng. is "B Eng"."""
    first, last = [each for each in found.groups() if each]
    return f"{' '.join(first)} {' '.join(last.upper()) if last == 'Sc' else last}{_stop(found)}"


def _numbered(found: re.Match[str]) -> str:
    said = _BEFORE_NUMBER[found[1].lower()] if found[1] else "number"
    return _cased(said, found[1] or "n") + " "
