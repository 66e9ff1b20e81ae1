"""English abbreviations: titles, streets, months and days, Latin, and other words that end in a dot."""

from __future__ import annotations

import re

from s1_mini.text.english.dates import BOOKS, DAYS, MONTHS
from s1_mini.text.stops import SPELT_NUMBERS, Kind, is_final, is_numbered, is_spelled, is_street
from s1_mini.text.tables import table, text_after, text_before, word_set

_SHORT_MONTHS = {month[:3]: month for month in MONTHS} | {"Sept": "September"}
_SHORT_DAYS = {day[:3]: day for day in DAYS} | table("Tues=Tuesday, Weds=Wednesday, Thur=Thursday, Thurs=Thursday")

_TITLES = table(
    "Mr=Mister, Mrs=Missus, Ms=Ms, Messrs=Messieurs, Prof=Professor, Rev=Reverend, Hon=Honorable, Gen=General, "
    "Col=Colonel, Capt=Captain, Cmdr=Commander, Lt=Lieutenant, Sgt=Sergeant, Maj=Major, Gov=Governor, Sen=Senator, "
    "Rep=Representative, Pres=President, Mt=Mount, Ft=Fort, Adm=Admiral, Fr=Father, Amb=Ambassador, Atty=Attorney, "
    "Pfc=Private First Class, Pt=Point, Ste=Sainte, Dir=Director, Asst=Assistant, Assoc=Associate, Attn=Attention, "
    "Wm=William, Geo=George, Chas=Charles, Thos=Thomas, Jas=James, Supt=Superintendent, Cpl=Corporal, Pvt=Private, "
    "Insp=Inspector, Det=Detective, Brig=Brigadier"
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
    "ver=version, pop=population, hwy=highway, rev=revision, arts=articles, "
    "ep=episode, cat=category, cl=clause, vv=verses, dep=departing, arr=arriving, tab=table"
)
_ANYWHERE = table(
    "etc=et cetera, e.g=for example, i.e=that is, vs=versus, cf=compare, viz=namely, approx=approximately, "
    "dept=department, govt=government, misc=miscellaneous, inc=Incorporated, ltd=Limited, corp=Corporation, "
    "co=Company, bros=Brothers, jr=Junior, sr=Senior, al=al, a.k.a=also known as, ph.d=P H D, ave=Avenue, "
    "blvd=Boulevard, hwy=Highway, pkwy=Parkway, dist=district, univ=university, assn=association, intl=international, "
    "natl=national, avg=average, temp=temperature, esq=Esquire, hosp=hospital, assoc=associate, asst=assistant, "
    "mgr=manager, mfg=manufacturing, incl=including, excl=excluding, qty=quantity, pkg=package, doz=dozen, "
    "attn=attention, hrs=hours, mins=minutes, secs=seconds, wk=week, wks=weeks, yrs=years, mos=months, pts=points, "
    "std=standard, orig=original, alt=alternate, mts=mountains, w.r.t=with respect to, s.t=such that, ea=each, "
    "rm=room, bldg=building, eds=editors, acct=account, ctrl=control, cmd=command, esc=escape, m.p.h=miles per hour, "
    "r.p.m=revolutions per minute, blk=block, blks=blocks, bdrm=bedroom, bdrms=bedrooms, tel=telephone, "
    "elev=elevation, gov't=government, int'l=international, nat'l=national, dep't=department, ass'n=association, "
    "cont'd=continued, appt=appointment, appts=appointments, mtg=meeting, mtgs=meetings, vit=vitamin, "
    "precip=precipitation, qtr=quarter, svc=service, wt=weight, chars=characters, pmt=payment, "
    "aves=Avenues, req'd=required"
)
_CHAT = table(
    "btwn=between, thx=thanks, pls=please, plz=please, omw=on my way, ofc=of course, ttyl=talk to you later, "
    "hbd=happy birthday, 2nite=tonight, 2day=today, 2moro=tomorrow, tmrw=tomorrow, ppl=people"
)
_SLASHED = table(
    "w/o=without, w/=with, b/c=because, 24/7/365=twenty-four seven three sixty-five, c/o=care of, w/out=without, "
    "n/a=not applicable, and/or=and or, and/or/not=and or not, a/c=A C, he/she=he or she, she/he=she or he, "
    "his/her=his or her, him/her=him or her, s/he=he or she, y/y=year over year, q/q=quarter over quarter, "
    "m/m=month over month, y/o=year old, p/w=per week, yes/no=yes or no, either/or=either or, tcp/ip=T C P I P"
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
# Abbreviations of states that follow a city and a comma.
_CITY_STATES = table(
    "Ala=Alabama, Ariz=Arizona, Ark=Arkansas, Calif=California, Colo=Colorado, Conn=Connecticut, Del=Delaware, "
    "Fla=Florida, Ga=Georgia, Ill=Illinois, Ind=Indiana, Kan=Kansas, Ky=Kentucky, La=Louisiana, Md=Maryland, "
    "Mass=Massachusetts, Mich=Michigan, Minn=Minnesota, Miss=Mississippi, Mo=Missouri, Mont=Montana, Neb=Nebraska, "
    "Nev=Nevada, Okla=Oklahoma, Ore=Oregon, Pa=Pennsylvania, Tenn=Tennessee, Tex=Texas, Va=Virginia, Vt=Vermont, "
    "Wash=Washington, Wis=Wisconsin, Wyo=Wyoming"
)


def _one_of(words: dict[str, str]) -> str:
    return "|".join(re.escape(word) for word in sorted(words, key=len, reverse=True))


_SLASHED_FORM = re.compile(rf"(?<![\w/])(?:{_one_of(_SLASHED)})(?![\w/])", re.IGNORECASE)
_DOCTORS = re.compile(r"\bPh\.D\.'?s\b")
_STATE = re.compile(rf"(?<=, )({_one_of(_STATES)})(?= \d{{5}}(?!\d))")
_CITY_STATE = re.compile(rf"(?<=[a-z], )({_one_of(_CITY_STATES)})\.(?!\w)")
_CHATTED = re.compile(rf"(?<![\w./'@#-])(?![A-Z]{{2}}|Ofc(?:\.| [A-Z]))(?i:{_one_of(_CHAT)})(?![\w/'@-]|\.\w)")
_BOOK = re.compile(  # Tim. 7:15 might be a person and a time
    r"(?:(?<=First )|(?<=Second )|\b(?=(?:Exod|Deut|Prov|Ezek|Thess|Eph|Heb|Jn|Lk)\b)"
    r"|(?<=\()(?=\w{2,5}\. [\d:]{3,6}\)))"
    rf"({_one_of(BOOKS)})\.? (?=\d{{1,3}}:\d)|\b({_one_of(BOOKS)})(?:\.|(?<!Sam|Dan|Tim|Col|Rev)) "
    r"(?=\d{1,3}:(?:\d(?!\d)|\d\d[-–]\d\d(?![\d:])))"
)
_CITY = re.compile(
    r"(?<![\w'-])(?:in|from|near|of|to|at|for|around|outside) (?:[A-Z][\w.]{0,20} ){0,2}[A-Z]\w{0,20}, $"
)
_SAINT_OR_DOCTOR = re.compile(r"(?<![\w.'-])(St|Dr)\b(\.?)(?=\s+(?:[A-Z]|(?<=Dr. )and (?:Mr|Mrs|Ms|Dr)\b))")
_STREET = re.compile(rf"(?<=[\w.] )({_one_of(_STREETS)})\b(\.?)(?!\w|'\w)")
_TITLE = re.compile(
    rf"(?<![\w.'-])({_one_of(_TITLES)})"
    r"(?:\.(?=\s+(?:[A-Z]|and\b))|(?:(?<=M[rs])|(?<=Mrs)|(?<=Prof))(?=\s+[A-Z]))"
)
_DAY = re.compile(
    rf"(?<![\w.'-])({_one_of(_SHORT_DAYS)})"
    rf"(?:\.(?!\w)|(?=(?:[,:]| [-–—])?\s(?:\d|[Nn]oon|[Cc]losed|(?:{'|'.join(_SHORT_MONTHS)}))))"
)
_DAY_BEFORE = re.compile(
    r"(?:\b(?:on|until|till|til|this|due|next|last|every|each|by|from|since|before|after|through|thru|open|closed|early|"
    r"late|(?:\w{0,6}day|Mon|Tues?|Wed|Thu(?:rs?)?|Fri|Sat|Sun)\.? (?:and|or|to|through|thru))|[,&/(:–-])\s?$",
    re.IGNORECASE,
)
_DAY_AFTER = re.compile(
    rf",? (?:\d|morning|afternoon|evening|night|noon|(?:at|from|to|through|thru|till|until|and|or|&) "
    rf"(?:\d|noon|{'|'.join(DAYS)}|{_one_of(_SHORT_DAYS)})|{'|'.join(_SHORT_MONTHS)})|\s?[-–/]| [a-z]| Closed|[,;!?)]"
)
# A word in lower case before Sat. or Sun. inside a sentence: "see you Sat."; the star has an article before it.
_INSIDE = re.compile(
    r"(?<![\w'])(?!(?:the|an?|our|their|its|your|his|her|my|and|or|of|with|in|under|like|around)\b)[a-z']{1,20} $"
)
_SHORT = _SHORT_DAYS | _SHORT_MONTHS
_SPAN = re.compile(rf"(?<![\w.'-])({_one_of(_SHORT)})\.?(?:\s?[-–]\s?| (?:to|thru|through) )({_one_of(_SHORT)})\b\.?")
_LOUD_NAME = _one_of(_SHORT).upper()
_LOUD = re.compile(  # SAT., OCT. 12
    rf"(?<![\w.'-])({_LOUD_NAME})(?=\.,? (?:\d[\d:]{{0,4}}+(?! of\b)|&|(?i:and) |(?:{_LOUD_NAME})\b))"
    rf"|(?<=(?:and|AND) )({_LOUD_NAME})(?=\.)"
)
_NAMES = "|".join((*MONTHS, *DAYS))
_PERIOD = f"(?:{'|'.join(MONTHS)}|Q[1-4]|Spring|Summer|Autumn|Fall|Winter)"
_NAMED_SPAN = re.compile(
    rf"(?<![\w-])({_NAMES})[-–](?=(?:{_NAMES})\b)"
    rf"|(?<![\w-])({_PERIOD}(?:,? \d{{4}})?) ?[-–] ?(?={_PERIOD},? \d{{4}}\b)"
)
_MONTH = re.compile(
    rf"(?:(?<![\w.'-])|(?<=\d[-–])|(?<=[Mm]id-))({_one_of(_SHORT_MONTHS)})"
    rf"(?:(?:(?<=\d [A-Z]..)|(?:(?<=\b[Ii]n [A-Z]..)|(?<=(?:since|until) [A-Z]..))(?<!Jan|Mar))(?<!May)(?![\w'-])\.?"
    rf"|(?<!May)\.|(?=\s(?:\d{{1,2}}(?:st|nd|rd|th)?|\d{{4}}|'\d\d)(?![\w%]|[:.]\d)))"
)
_NUMBERED = re.compile(
    rf"(?<![\w.'-])({_one_of(_BEFORE_NUMBER)})\.\s?"
    r"(?=[~≈]?\d|(?<=eq\. )\(|[A-Z]{1,4}-?\d|(?<=(?-i:No)\. )[A-Z]{2,4} \d|[IVX]{2,6}\b|[VX]\b)|№ ?(?=\d)",
    re.IGNORECASE,
)
_LOWER = re.compile(r"(?<![\w.'-])(?<!\d )(min|max)\.(?!\w)")
_ONE_MINUTE = re.compile(r"\b(?:a|one|per|each|every|another|this|that|any|last|half)\s$", re.IGNORECASE)
_MINUTES = re.compile(rf"\b(?:few|several|couple of|some|{'|'.join(SPELT_NUMBERS - {'one'})})\s$", re.IGNORECASE)
_AFTER_MINUTE = re.compile(
    r"\s?(?:$|[^\w\s])|\s(?:please|later|ago|and|or|to|before|after|longer|more|too|for|while|when|[A-Z])"
)
_PAIRED = re.compile(r"\b(?:min|max)\w{0,5}\.?,? ?(?:and|or|/|&) ?$", re.IGNORECASE)
_JAN_BEFORE = re.compile(
    r"(?:\b(?:in|on|by|since|until|till|of|early|late|mid|last|next|this|from|to|through|and|or|every|each|before|after|"
    r"during|around)|\d,|[\d(:/–-])\s?$",
    re.IGNORECASE,
)
_NAME_BEFORE = re.compile(
    r"(?:\b(?!(?:The|An?|This|That|My|Our|Your|His|Her|Their|Its|Ask)\b)[A-Z][\w'.-]{0,30}|&|\b\d{1,3}(?:st|nd|rd|th)|"
    r"\band),? $"
)
_QUALIFIES = re.compile(rf",? (?:(?!(?:{'|'.join(SPELT_NUMBERS)})\b)[a-z]|-?\d{{1,4}}(?:\.\d)? ?[°CF])")
_QUALIFIED = re.compile(
    r"\b(?:max|min|avg|average|maximum|minimum|high|low|body|room|water|air|oven|outside|mean|core)\.? $", re.IGNORECASE
)
_EDITION = re.compile(r"(?<=\d(?:st|nd|rd|th) )(ed|[Ff]l)\.|(?<=\b(?:first|third|sixth) )(ed|fl)\.")
_DEGREE = re.compile(
    r"(?<![\w.'-])([BM])\.(Sc|Eng|Ed|Tech|Com|Arch|Phil)\.|(?<![\w.'-])(D)\.(Phil|Sc)\.|(?<![\w.'-])(LL)\.([BM])\."
)
_OFFICE = re.compile(
    r"\b(Sec|Dir|Gov|Pres|Prof|Supt|[Nn]os?)\.(?= (?:of(?! course)|Gen)\b)"
    r"|(?<![\w.'-])(amb|atty|capt|dir|gen|gov|hon|maj|pres|prof|rep|sen|sgt|supt)\.(?= [a-z])"
    r"|(?<=[Tt]he )(Amb|Capt|Gen|Gov|Insp|Prof|Sen|Sgt)\.(?= [a-z])"
)
_ON_DAY = re.compile(
    r"(?:(?<=\b[Oo]n )|(?<=\b[Bb]y )|(?<=this |next |last |from )|(?<=until ))(?!Sun(?! at \d))(?=\w+(?![\w'./-]))"
    rf"({_one_of(_SHORT_DAYS)})\b"
)
_CELL = re.compile(rf"(?:^(?=\w+ \|)|(?<=\| )(?=\w+(?: \||$)))({_one_of(_SHORT)})\b", re.MULTILINE)
_CERTAIN_CELL = re.compile(r"\b(?:Mon|Tue|Thu|Fri|Feb|Apr|Jun|Jul|Aug|Sep|Oct|Nov)\b")  # not Sun, Sat, Wed, Mar
_ONE_DAY = re.compile(rf"({_one_of(_SHORT_DAYS)})\b\.?")
_DAYS = re.compile(  # Fri, Sat & Sun
    rf"(?<![\w.'-])(?:{_ONE_DAY.pattern}(?:,? (?:&|and|or) |, | ?[&/] ?)){{1,6}}(?:{_one_of(_SHORT_DAYS)})\b"
    r"(?!['-])\.?(?!\w)"
)
_VERSUS = re.compile(
    r"(?<![\w.'-])((?:[A-Z][\w'&-]{1,30}|[A-Z]\.[A-Z])\.?) v\.? (?=(?:[A-Z][a-z]|[A-Z]\.[A-Z]|[A-Z]{2}|United)\w)"
)
_A_DOCTOR = re.compile(
    r"\b((?:the|my|your|his|her|our|their|an?|this|that) )Dr\b(?:\.(?!\w)|(?= [a-z]))", re.IGNORECASE
)
_ESTIMATED = re.compile(r"(?<![\w.'-])([Ee])st\.(?= [a-z$£€])")
_SPOONS = re.compile(
    r"(?<![\w.,/])((?:\d{1,2}[ -])?\d{1,2}(?:/\d{1,2})?|[½¼¾⅓⅔]) ?((?<=\d/\d )C|[cTt])\.(?= [a-z])"
)  # 2 c. flour
_VERSION = re.compile(r"(?<![\w.])([vV])\.(?=\d)")
_AT_START = re.compile(r"(?:^|(?<=[.!?,:–-] )|(?<=[(/]))(Min|Max)\.(?= [a-z\d])", re.MULTILINE)
_UNDOTTED_NUMBERED = re.compile(r"\b(Apt|Ste|[Hh]wy|[Bb]ldg|[Rr]te|[Rr]m|[Qq]ty|[Vv]er)(:?) (?=#?\d)")
_LENGTHS = table("dist=distance, alt=altitude, elev=elevation")
_OF_LENGTH = re.compile(r":?(?: of)? \d[\d.,]*+ ?(?:k?m|mi|ft|yd|miles|met(?:er|re)s)\b")
_SLASHED_TITLES = re.compile(r"(?<![\w/])(Mr|Mrs|Ms|Dr)\.?/(Mr|Mrs|Ms|Dr)\b")
_DOTTED = re.compile(rf"(?<![\w.'-])({_one_of(_ANYWHERE)})\.(?!\w)", re.IGNORECASE)
_UNDOTTED = re.compile(
    r"(?<![\w./'-])(vs|etc|e\.g|i\.e|[Cc]trl|Cmd|Esc|bdrms?|blks?|(?<!\b1 )(?:hrs|mins)|"
    r"[Gg]ov't|[Ii]nt'l|[Nn]at'l|[Dd]ep't|[Aa]ss'n|[Cc]ont'd|[Rr]eq'd)(?![\w./])"
)
_LETTERS = re.compile(r"(?:(?<![\w.'-])|(?<=[A-Za-z]-))((?:[A-Za-z]\.){2,10})(?:([A-Za-z])(?![\w.]))?")
_INITIAL = re.compile(r"(?<![\w.'°-])([A-Z])\.(?=\s?[A-Z](?:[.']|[a-z]))")
_CODE_BEFORE = re.compile(  # Exit fourteen B.
    r"\b(?:Apartment|Exit|Gate|Platform|Room|Route|Seat|Suite|Unit) [a-z]{3,9}(?:[ -][a-z]{3,9}){0,3} $"
)
DIRECTIONS = table("N=North, S=South, E=East, W=West, NE=Northeast, NW=Northwest, SE=Southeast, SW=Southwest")
_COMPASS_OF = re.compile(  # 35 km SE of Tokyo
    r"((?<=[a-z] )[NS][EW]|(?:(?<=\d km )|(?<=\d mi )|(?<=miles )|(?<=meters ))[NSEW])(?= of (?:[A-Z]|the\b))"
)
_ANY_STREET = rf"(?:{_one_of(_STREETS)}|{'|'.join(_STREETS.values())})\b"
_DIRECTION = re.compile(
    rf"(?:(?<=\d )|(?<=\d[A-Z] ))([NS][EW]|[NSEW])\.?(?= (?:[A-Z]\w{{1,20}} ){{1,3}}{_ANY_STREET})"
    rf"|(?<![\w.'-])([NS][EW]|[NSEW])\.?(?= \d{{1,3}}(?:st|nd|rd|th) {_ANY_STREET})"
    r"|(?<=\d )([NSEW])\.(?= \d{1,3}(?:st|nd|rd|th)\b)"  # 310 W. 45th
    r"|(?:(?<=[Ww]ind )|(?<=[Ww]inds )|(?<=\bI-\d )|(?<=\bI-\d\d ))([NS][EW]?|[EW])(?=[,;]| [a-z\d])"
)


_TITLED = _TITLES | {"Dr": "Doctor"}


def _cased(said: str, like: str) -> str:
    return said[0].upper() + said[1:] if like[:1].isupper() else said


_SAID_WITH_S = table("A=ays, C=sees, F=effs, L=ells, O=ohs, Q=cues")  # voices do not say "O's" as the name of a letter
_NEVER_LAST = word_set("vs e.g i.e cf viz approx incl excl w.r.t s.t")
_PARTS = word_set(
    "dept govt dist univ assn intl natl avg hosp assoc asst misc mgr mfg attn std orig alt temp mts bldg rm doz "
    "vit pkg eds acct blk blks bdrm bdrms"
)
_UNITS = word_set("hrs mins secs wk wks yrs mos pts")
_DEGREES = word_set("d.d.s m.b.a r.i.p r.s.v.p e.t.a")
_NOTES = frozenset(("p.s", "n.b", "p.p.s"))  # begin a sentence
# Abbreviations that are read only next to other words, because their letters are also words of their own.
_AFTER_A_NAME = word_set("co inc corp ltd bros ave")
_ADJECTIVES = word_set("temp alt")


def letter_with_s(letter: str) -> str:
    """Return the plural or the possessive of the name of a letter in a spelling that voices say right."""
    return _SAID_WITH_S.get(letter, f"{letter}'s")


def _stop(found: re.Match[str], kind: Kind = "other") -> str:
    """Return a full stop if an abbreviation's final dot also ends the sentence, otherwise an empty string."""
    is_end = found.group().endswith(".") and is_final(found.string, found.start(), found.end(), kind)
    return "." if is_end else ""


def _dotted(found: re.Match[str]) -> str:
    word, before = found[1].lower(), text_before(found, 34)
    if word in _AFTER_A_NAME and found[1].islower() and not _NAME_BEFORE.search(before):
        return found.group()
    if found[1] == "HRs" or (word in ("wk", "pkg") and before[-2:-1].isdecimal()):
        return found.group()  # home runs, and a unit
    length = _LENGTHS.get(word) if _OF_LENGTH.match(text_after(found, 30)) else None
    if word in _ADJECTIVES and not (length or _QUALIFIES.match(text_after(found, 12)) or _QUALIFIED.search(before)):
        return found.group()
    said = _cased(length or _ANYWHERE[word], found[1])
    if word in ("sr", "jr") and not _NAME_BEFORE.search(before):
        return said  # Sr. Engineer
    if word in _NEVER_LAST:
        return said
    return said + _stop(found, "part" if word in _PARTS else "unit" if word in _UNITS else "other")


def _day(found: re.Match[str]) -> str:
    """Read Sat. and Sun. as days only next to words of time, because they are also words."""
    is_word = found[1] in ("Sat", "Sun") and found.group().endswith(".")
    before = text_before(found, 24)
    is_day = _DAY_BEFORE.search(before) or _INSIDE.search(before) or _DAY_AFTER.match(text_after(found, 16))
    if is_word and not is_day:
        return found.group()
    return _SHORT_DAYS[found[1]] + _stop(found, "day")


def _days(found: re.Match[str]) -> str:
    said = _ONE_DAY.sub(lambda day: _SHORT_DAYS[day[1]], found.group()).replace("/", " ")
    return said + _stop(found, "day")


def _month(found: re.Match[str]) -> str:
    stop = _stop(found, "month")
    if stop and found[1] in ("Jan", "Mar") and not _JAN_BEFORE.search(text_before(found, 9)):
        return found.group()  # a name
    return _SHORT_MONTHS[found[1]] + stop


def _lower(found: re.Match[str]) -> str:
    """Read min. as "minute" after an article; read neither min. nor max. at the end of a sentence."""
    before, after = text_before(found, 14), text_after(found, 10)
    if found[1] == "min" and _MINUTES.search(before):
        return "minutes" + _stop(found, "unit")
    is_end = before.endswith("to the ") or is_final(found.string, found.start(), found.end(), "unit")
    if found[1] == "min" and _ONE_MINUTE.search(before) and (is_end or _AFTER_MINUTE.match(after)):
        return "minute" + _stop(found, "unit")
    if is_end and not _PAIRED.search(before):
        return found.group()
    return f"{found[1]}imum" + _stop(found, "unit")


def _city_state(found: re.Match[str]) -> str:
    is_certain = found[1] not in ("Pa", "La", "Del", "Miss", "Mo") or _CITY.search(text_before(found, 60))
    is_certain = is_certain or re.match(",| [a-z]", text_after(found, 2))
    return _CITY_STATES[found[1]] + _stop(found) if is_certain else found.group()


def _street(found: re.Match[str]) -> str:
    before = text_before(found, 40).split()
    named = before and (before[-1][0].isupper() or re.fullmatch(r"\d{1,40}(?:st|nd|rd|th)", before[-1]))
    after = text_after(found, 2)
    is_direction = re.match(r" (?:[NS][EW]?|[EW])\b", text_after(found, 4)) is not None
    if not named or (after[:1] == " " and after[1:].isupper() and not found[2] and not is_direction):
        return found.group()
    return _STREETS[found[1]] + _stop(found)


def _saint_or_doctor(found: re.Match[str]) -> str:
    """Distinguish St. John from John St., and Dr. Smith from Elm Dr. (which `_street` reads), by the preceding text."""
    if is_street(found.string, found.start()):
        return found.group()
    return ("Saint" if found[1] == "St" else "Doctor") + _stop(found, "title")


def _initial(found: re.Match[str]) -> str:
    is_name = not (is_spelled(found.string, found.start()) or _CODE_BEFORE.search(text_before(found, 40)))
    is_name = is_name and not is_final(found.string, found.start(), found.end(), "letters")
    return f"{found[1]} " if is_name else found.group()


def _letters(found: re.Match[str]) -> str:
    said = found[1].replace(".", " ").strip()
    letters = found[1].lower().rstrip(".")
    if letters in ("a.m", "p.m", "b.c", "a.d"):
        said = said.upper()
    elif letters in ("e.g", "i.e"):
        return found.group()
    if found[2] == "s" and said.isupper():
        return f"{said[:-1]}{letter_with_s(said[-1])}"
    if found[2]:
        return f"{said} {found[2]}"
    if letters in _NOTES:
        return said
    kind: Kind = "half" if letters in ("a.m", "p.m") else "other" if letters in _DEGREES else "letters"
    return said + _stop(found, kind)


def read_abbreviations(text: str) -> str:
    """Write abbreviations out; keep a dot that also ends the sentence."""
    if "/" in text:
        text = _SLASHED_TITLES.sub(lambda found: " or ".join(_TITLED[each] for each in found.groups()), text)
        text = re.sub(r"(?<![\w/])w/(?=[a-z]{3})(?!out\b)", "with ", text)
        text = _SLASHED_FORM.sub(lambda found: _cased(_SLASHED[found.group().lower()], found.group()), text)
    text = _DAYS.sub(_days, _LOUD.sub(lambda found: found.group().title(), text))
    text = _UNDOTTED_NUMBERED.sub(
        lambda found: f"{_cased(_BEFORE_NUMBER[found[1].lower()], found[1])}{found[2]} ", text
    )
    text = _VERSUS.sub(r"\1 versus ", _VERSION.sub(r"\1", text))
    text = _STATE.sub(lambda found: _STATES[found[1]], text)
    text = _DIRECTION.sub(lambda found: DIRECTIONS[next(filter(None, found.groups()))], text)
    text = _COMPASS_OF.sub(lambda found: DIRECTIONS[found[1]].lower(), text)
    text = _SAINT_OR_DOCTOR.sub(_saint_or_doctor, text)
    text = _A_DOCTOR.sub(lambda found: f"{found[1]}Doctor{_stop(found)}", text)
    text = _STREET.sub(_street, text)
    text = _SPAN.sub(lambda found: f"{_SHORT[found[1]]} to {_SHORT[found[2]]}{_stop(found, 'day')}", text)
    text = _ON_DAY.sub(lambda found: _SHORT[found.group()], text)
    if "|" in text and _CERTAIN_CELL.search(text):
        text = _CELL.sub(lambda found: _SHORT[found.group()], text)
    text = _MONTH.sub(_month, _DAY.sub(_day, _TITLE.sub(lambda found: _TITLES[found[1]] + _stop(found, "title"), text)))
    text = _NAMED_SPAN.sub(lambda found: f"{found[1] or found[2]} to ", text)
    text = _BOOK.sub(lambda found: f"{BOOKS[found[1] or found[2]]} ", text)
    text = _CHATTED.sub(lambda found: _cased(_CHAT[found.group().lower()], found.group()), text)
    text = _UNDOTTED.sub(lambda found: _cased(_ANYWHERE[found[1].lower()], found[1]), text)
    if "." not in text and "№" not in text:
        return text
    text = _SPOONS.sub(_spoons, _ESTIMATED.sub(lambda found: f"{_cased('estimated', found[1])}", text))
    text = _DOCTORS.sub(f"P H {letter_with_s('D')}", text)
    text = _OFFICE.sub(_office, _DEGREE.sub(_degree, text))
    text = _EDITION.sub(lambda found: ("edition" if "ed" in found.groups() else "floor") + _stop(found), text)
    text = _CITY_STATE.sub(_city_state, _NUMBERED.sub(_numbered, text))
    text = _AT_START.sub(r"\1imum", text)
    text = _DOTTED.sub(_dotted, _LOWER.sub(_lower, text))
    return re.sub(r"  +", " ", _INITIAL.sub(_initial, _LETTERS.sub(_letters, text)))


def _spoons(found: re.Match[str]) -> str:
    name = {"T": "tablespoon", "t": "teaspoon"}.get(found[2], "cup")
    is_one = found[1] == "1" or re.fullmatch(r"\d{1,2}/\d{1,2}|[½¼¾⅓⅔]", found[1])
    return f"{found[1]} {name}{'' if is_one else 's'}"


def _office(found: re.Match[str]) -> str:
    word = (found[1] or found[2] or found[3]).lower()
    said = "secretary" if word == "sec" else _TITLES.get(word.title(), "").lower() or _BEFORE_NUMBER[word]
    return _cased(said, found[1] or found[3] or "")


def _degree(found: re.Match[str]) -> str:
    """Read B.Sc. as letters, and longer degrees as they are written: B.Eng. is "B Eng"."""
    first, last = [each for each in found.groups() if each]
    return f"{' '.join(first)} {' '.join(last.upper()) if last == 'Sc' else last}{_stop(found)}"


def _numbered(found: re.Match[str]) -> str:
    if found[1] and not is_numbered(found.string, found.start(), found.end()):
        return found.group()
    said = _BEFORE_NUMBER[found[1].lower()] if found[1] else "number"
    return _cased(said, found[1] or "n") + " "
