"""Items that are spelled out: telephone and room numbers, versions, mixed letters and digits, links, files, acronyms.

Also words in capitals for emphasis, and repeated letters.
"""

from __future__ import annotations

import re
from functools import lru_cache, partial
from itertools import product

from s1_mini.text.english.abbreviations import letter_with_s
from s1_mini.text.english.measures import UNITS, plural
from s1_mini.text.english.numerals import cardinal, digits, paired, plural_number, written
from s1_mini.text.stops import GIVEN
from s1_mini.text.tables import signs, table, text_after, text_before, word_set, words

# Exceptions to the rules for words in capitals. Acronyms that are pronounced as words:
SAID = word_set(
    "NASA NATO UNESCO UNICEF OPEC AIDS COVID RAM ROM PIN SIM GIF ASCII IKEA NAFTA ASEAN SWAT FIFA UEFA LEGO "
    "SARS VIX NASDAQ YOLO LASER RADAR SONAR SCUBA CAPTCHA ECOWAS OSHA HIPAA FEMA NOAA PETA NORAD GUI WYSIWYG JPEG "
    "ZIP MIDI BIOS CERN INTERPOL EUROPOL TASER MERS CRISPR LIDAR PISA TOEFL AWOL FOMO SIDS GAAP DARPA COBOL "
    "IMAX ICANN NIMBY MOMA CAD MAC DOS LAN WAN VIN COP GNU"
)
# Acronyms that are spelled out:
SPELT = word_set(
    "FBI CIA USA UK EU UN US UAE NSA IRS CEO CFO CTO COO IBM BBC CNN NBC ABC CBS ESPN HTML CSS HTTP HTTPS URL "
    "URI API SDK USB CPU GPU TPU LED LCD OLED DVD CD TV PC PDF PNG SVG XML SQL DNS IP TCP UDP SSH SSL TLS VPN "
    "WWW FTP IT AI ML AR VR HR PR QA ID GDP GNP VAT MBA PHD BA MA BSC MD DJ MC VIP DIY FAQ ASAP RSVP TBA TBD "
    "ETA FYI LOL OMG BTW DNA RNA HIV ADHD OCD PTSD ICU ER MRI NHS WHO IMF WTO ECB UFO SUV BMW ATM PO AC DC AM "
    "FM PM EST PST CST MST GMT UTC BST CET NBA NFL NHL MLB UFC PGA NCAA YMCA ACLU NAACP IEEE GDPR AARP AAA "
    "EEG IQ EQ OK OS IOS DOI ISBN AOL AWS SMS MMS GPS ISP IDE SATA LGBT LGBTQ EPA FDA FCC SEC CDC NIH DEA DOJ "
    "NRA UCLA MIT NYU USSR GDR RGB HD UHD HDMI DIN IPO ROI KPI ROTFL SEO CRM ERP HQ EV AGM NGO APR ISO CV BC AD "
    "PSAT USDA USPS USAF USCIS AFAIK IMHO CE IOU LLC PLC PLO IRA BPS UPS DHL KFC IEC EULA UI UX ICYMI ASPCA "
    "CEST EEST AEST MAOI"
)
# Words that are read as words even in capitals. The same applies to other words of at least four capitals that are
# pronounceable or too long for an acronym.
SHORT = word_set(
    "JSON YAML NVIDIA CMAKE REPL A I AN AS AT BE BY DO GO HE IF IN IS ME MY NO OF OH ON OR SO TO UP WE HI YO YES "
    "NOT AND THE ALL ANY ARE ASK BAD BAG BED BIG BOX BOY BUS BUT BUY CAN CAR CAT CRY CUP CUT DAD DAY DID DIE DOG "
    "DRY EAT END EVE EYE FAR FEW FLY FOR ARM ACT ADD AGE AGO AID AIM AIR ART ATE BET BIT BUG CAP COW COP DAM DEN "
    "DIG DIP DOT DUE EAR EGG FAN FAT FEE FIT FIX FOX GAP GAS GYM HID HUG INN JAM JAR JET LAB LAP LIP LOG MIX MUD "
    "NET NUT OWE PAN PEN PET PIE PIG PIT POT RAT RAW RAY ROW RUB RUG SIN SIP SUM TAP TAR TIN TIP TON TOY VOW WAX "
    "WEB WIG ZIP FUN GET GOD GOT GUN GUY HAD HAS HAT HER HEY HIM HIS HIT HOT HOW ICE ITS JOB JOY KEY KID LAW LAY "
    "LEG LET LIE LOT LOW MAD MAN MAP MAY MEN MET MOM MR MRS MS MUM NEW NOR NOW ODD OFF OIL OLD ONE OUR OUT OWN "
    "PAY PUT RAN RED RUN SAD SAT SAW SAY SEA SEE SET SEX SHE SIR SIT SIX SKY SON SUN TAX TEA TEN TIE TOO TOP TRY "
    "ARC ASH AXE BAN BAR BAT BAY BEE BEG BIN BOW BUD BUN CAB CUE DIM ELF ELM FED FIG FIR FLU FOG FRY FUR GAG HAM "
    "HAY HEN HIP HOP HUT ICY ILL INK IVY JAW JOG JUG KIT LAD LIT MAT MAX MOB MOP MUG NAP NUN OAK OAR OWL PAL PAW "
    "PEA PIN POP PUB RAG RIB RIM ROB ROD RUM SEW SHY SOB SPY SUE TAG TOE TUB TUG VET WED YAY YEP "
    "ACE PAC TWO USE VAN WAR WAS WAY WET WHY WIN WON YET YOU ZOO"
)
# Clusters of consonants with which an English word or syllable can begin, and can end (without a plural's S).
ONSETS = word_set(
    "BL BR CH CHL CHR CL CR CZ DR DW DY FJ FL FR GH GL GN GR GW KH KL KN KR LL LY MN MY NY PF PH PHL PHR PL PN PR "
    "PS QU RH SC SCH SCHL SCHM SCHN SCHW SCL SCR SH SHM SHR SK SKR SL SM SN SP SPH SPL SPR SQU ST STR SV SW TH "
    "THR THW TR TS TW VL VR WH WR ZH ZL"
)
CODAS = word_set(
    "BB BT CH CHT CK CKS CT DD DGE DTH DZ FF FT GG GH GHT GN GS KS LB LC LCH LD LF LFTH LK LL LM LN LP LPT LS LSH "
    "LT LTH LTZ LV LZ MB MF MM MN MP MPH MPT MS NC NCH NCT ND NG NGTH NK NKS NN NS NSK NST NT NTH NX NZ PH PP PS "
    "PT PTH RB RC RCH RD RF RG RGH RK RL RLD RM RMTH RN RP RR RS RSH RST RT RTH RTZ RV RX RZ SCH SH SK SM SP SS "
    "ST TCH TH THM TS TT TZ WD WK WL WN WS WT XT XTH ZZ"
)
AMBIGUOUS = word_set("US IT WHO AM AI ME OR IN ID OK")  # words next to a shouted word; OK: okay
_TESTS = (
    r"scores?|exams?|tests?|test-\w{1,9}|prep\w{0,9}|maths?|sections?|questions?|practice|subject|words?|vocabulary|"
    r"tutors?|tutoring|results?|dates?|registration|percentiles?|essays?|takers?|requirements?|"
    r"participation|(?:and|or) (?:the )?(?:ACT|GRE|PSAT|SAT|GPA)"
)
# Words in capitals that are letters after the first or before the second pattern, and words elsewhere.
_LETTERED = {
    "SAT": (
        r"the|an|her|his|my|their|your|our|on|tak\w{1,3}|took|retak\w{1,3}|for|digital|preliminary|PSAT|ACT|GRE|"
        r"(?:ACT|GRE|GPA) (?:and|or)",
        r"(?!(?:alone|around|at|back|beside|by|down|for|here|idle|in|next|on|still|there|through|up|with|quietly)\b)\w{2,}",
    ),
    "ACT": (
        r"the|an|SAT|PSAT|her|his|my|their|your|(?:SAT|GRE) (?:and|or)|took|tak\w{1,3}|for|on",
        _TESTS,
    ),
    "ADD": ("has|have|had|having|with|of", r"medications?|diagnos\w{2}|symptoms?|patients?|treatment|(?:and|or) ADHD"),
    "DOT": (
        "the|state|federal|by|from",
        r"regulations?|inspections?|physicals?|numbers?|approved|officials?|compliance|workers?|drug",
    ),
    "MS": (
        "has|have|had|having|with|an|the|her|his|my|of|and|for|a|in|from",
        r"Word|Excel|Office|Windows|Teams|Paint|Outlook|Access|DOS|Project|SQL|[a-z]+",
    ),
    "MR": ("an|the|by|on|and|or", r"imaging|scans?|scanners?|angiography|images?|machines?|spectroscopy"),
    "OR": ("the|an|our", r"nurses?|rooms?|tech\w{0,9}|schedules?|suites?|tables?|staff"),
    "ME": ("Windows", "CFS"),
    "IN": ("Gary", "zip"),
}
_CUES = {
    word: (re.compile(rf"\b(?:{before})\s$", re.IGNORECASE), re.compile(rf"(?:\s|/)(?:{after})\b"))
    for word, (before, after) in _LETTERED.items()
}
_CITY = re.compile(r"\b[A-Z][a-z]{2,20}, $")
_ENDS = r"(?<!\s)\s*+(?:[.,;:!?)]|$)"
# Initialisms that are words between these patterns, as in "Join US today", "Do IT now" and "Guess WHO came".
_PRONOUNS = {
    "US": (
        r"(?:\b(?:join|let|give|gave|tell|told|help|contact|follow|call|ask|show|send|bring|make|made|save|loves?|hate|trust|"
        r"visit|email|(?:one|all|both|some|most|none|each|any|many|two|half|rest) of))\s$",
        rf"{_ENDS}|\s(?:all|to|a|an|the|what|how|in|at|on|for|about|up|out|back|know|now|today|your|and|or|if|when|that|by|more|"
        r"from|with|because|so|here|there|go|be|do|is|are|was|were|has|have|had|will|can|could|agree|want|need|think|feel|would|should|don't)\b",
    ),
    "IT": (
        r"\b(?:do|did|get|got|love|loves|loved|hate|hated|want|like|liked|made|make|take|took|believe|knew|know|saw|"
        r"see|is|was|that's|just|nailed|had|try|tried|found|meant|mean|done)\s$",
        rf"{_ENDS}|\s(?:all|now|again|right|really|today|yourself|myself|done|on|over|up)\b",
    ),
    "WHO": (
        r"(?:^|[.!?]\s|\b(?:guess|know|knows|knew|see|saw|wonder|remember|matters?|someone|anyone|those|people|person|man|"
        r"woman|ones?|find out|exactly|me|cares?|and|or)\s)$",
        r"[^.!?\n]{0,80}\?|\s(?:it|he|she|they|you|we|I|is|was|came|did|cares?|knows?|wins?|won)\b",
    ),
    "AM": (r"\bI\s$", ""),
}
_AFTER_STATE = re.compile(rf"{_ENDS}|\s\d{{5}}")
_BETWEEN = {word: (re.compile(before, re.IGNORECASE), re.compile(after)) for word, (before, after) in _PRONOUNS.items()}

# Words with a double letter, so that "goooood" is good and "sooooo" is so.
DOUBLED = word_set(
    "good cool food mood soon moon noon too tool fool room boom zoom book look took cook see seen need feed "
    "sweet week been free tree three green keep sleep sleepy feel deep meet street cheese geez all ball call "
    "tell well will hell yell still small full kill bell fell hill hello yellow really off stuff miss kiss "
    "less pass boss cross grass class add odd egg happy funny sorry pretty silly boo moo woo zoo ooh aah eek "
    "hmm shh brr grr mm zz woohoo yahoo coffee bee loose goose smooth proof goodness goodbye hooray yippee "
    "whee wheel asleep agree speed beer cheers ass better bitter letter butter happen summer winner dinner "
    "running school blood door floor poor"
)

_PHONE = re.compile(
    r"(?<![\w.,/-])(?:\+?\d{1,3}[ .-])?(?:\(\d{3}\)[ .-]?|\d{3}[ .-])\d{3}[ .-]\d{4}(?![\w-])"
    r"|(?<![\w.,/])\+\d[\d ()./-]{6,20}\d(?!\w)"
    r"|(?<![\w.,/-])\d{3}-\d{4}(?![\w-])|(?<![\w.,/-])\d{3}-\d{2}-\d{4}(?![\w-])"
    r"|(?<![\w.,/-])\d{4}(?:[ -]\d{4}){3}(?![\w-])"
    r"|(?<![\w.,/+-])\(0\d{1,4}\)[ -]?\d{2,8}(?:[ -]\d{2,8}){0,3}(?![\w-])|(?<![\w.,/-])1[38]00 \d{3} \d{3}(?![\w-])"
    r"|(?<![\w.,/-])\(0\)\d{2,5}(?: \d{3,8}){1,3}(?![\w-])|(?<![\w.,/-])400[ -]\d{3}[ -]\d{4}(?![\w-])"
    r"|(?<![\w.,/-])(?:\d[ -])?(?:\(\d{3}\)|\d{3})[ -]\d{3}-\d\d-\d\d(?![\w-])"
)
# National numbers with a leading zero, 8 to 12 digits in groups: 020 7946 0123, 01.42.68.53.00, 030/1234567.
_NATIONAL = re.compile(r"(?<![\w.,/+:-])0\d{1,4}(?:(?: ?[./-] ?| )\d{2,8}){1,5}(?![\w/-]|[.,:]\d)")
_EXTENSION = re.compile(r"(?<=\d-\d{4}) ?x(?=\d{1,5}\b)")
_WORDS_DIALLED = re.compile(
    r"(?<![\w.,/-])(1-8(?:00|33|44|55|66|77|88))-((?:[A-Z]{2,8}|\d{1,4})(?:-(?:[A-Z]{2,8}|\d{1,4})){0,2})(?!\w)"
)
_DIALLED = re.compile(
    r"\b((?:call|dial|ring|phone|telephone|tel|text|fax|mobile|cell|whatsapp|hotline|helpline|code|pin|zip|extension|password|"
    r"ends?|ending|passcode|(?-i:ID|UPC|NHS(?= 111)))\.?"
    r"(?: us| me| him| her| them| now| (?-i:[A-Z]{2,12}) to)?(?: is| on| in| at| number)?:?) "
    r"(\d{2,8}(?:[ -]\d{2,5}){2,4}|\d{5} \d{5,6}|\d{3} \d{3}|\d{3,12})\b"
    r"(?![.,]\d|-\d| (?:people|customers|clients|others|more|times)\b)",
    re.IGNORECASE,
)
_EITHER_DIALLED = re.compile(r"\b((?:call|dial|ring|phone|text) )(\d{3})( or )(\d{3})\b(?![.,]\d|-\d)", re.IGNORECASE)
_IBAN = re.compile(
    r"(?<!\w)[A-Z]{2}\d\d(?= [A-Z\d]{4} (?:[A-Z\d]{4} )?\d{4})(?: [A-Z\d]{4}){3,7}(?: [A-Z\d]{1,3})?(?!\w)"
)
_OWN_NUMBER = re.compile(
    r"(\b(?:my|your|his|her|our|their|phone|cell|account|order|tracking|reference|confirmation|serial|case|policy|customer|"
    r"member\w{0,4}|contact) number(?:'s| is| was|:)? )(\d{7,12})(?![\w.,-]*\d)",
    re.IGNORECASE,
)
_ZIP = re.compile(
    r"(?<=[a-z] )(\d{5})(?:-(\d{4}))?(?=$|\n|[.,;)]|$)|(?:(?<=[A-Z]{2} )|(?<=\bD C ))(\d{5})(?:-(\d{4}))?\b"
)
_ADDRESS = re.compile(r"(?<![\w.,:/$£€-])(\d{1,2}:\d\d|\d{1,3}(?:\.\d{1,3}){3})(:\d{2,5})?(?![\w.]*\d)")
_VERSION = re.compile(
    r"(?<![\w.])(?<!-(?=V))[vV](\d{1,4}(?:\.\d{1,4}){0,4})\b|(?<![\w.,])(?!\d{1,3}(?:\.\d{3}){2,}(?![\w.]))(\d{1,4}(?:\.\d{1,4}){2,4})(?![\w.]*\d)|"
    r"(?<=\b)([Vv]ersion|Python|Java|iOS|Android|Windows|macOS|Ubuntu|Node|Release|release|PyTorch|CUDA|Chrome|Firefox)"
    r" (\d{1,4}(?:\.\d{1,4}){1,3})(?![\w.]*\d)"
)
_PLACE = re.compile(
    r"\b(rooms?|suite|apartment|flight|route|highway|interstate|gate|bus|train|channel|area|boeing|airbus|locker|cell|"
    r"http|port|error|bwv|status|rfc|cessna|learjet|porsche|ferrari|mclaren|peugeot|"
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
_FORMULA = re.compile(  # capitals, the CaCO of CaCO3, and HbA1c
    "[A-Z]++|HbA|SpO|(?:Al|Ag|Ba|Br|Ca|Cl|Co|Cr|Cu|Fe|Hg|Li|Mg|Mn|Na|Ni|Pb|Si|Ti|Zn|[BCFHIKNOPS]){2,5}+"
)
_VOWEL = re.compile("[AEIOUYaeiouy]")
_ROWS = re.compile(r"(?<=\b[A-Z])–(?=[A-Z]\b)")  # seats D–F
_STANDARD = re.compile(r"(?<![\w.])([A-Z])\.(\d{3})(?![\w.]*\d)")  # H.264
_PRERELEASE = re.compile(r"(?<=\d)-?(alpha|beta|rc)(?:[.-]?(\d{1,3}))?(?![\w-]|\.\d)")  # 1.0.0-rc.2
_GLUED_VERSION = re.compile(r"(?<=[A-Z]{3})v(?=\d)")  # YOLOv8
_FROM_VERSION = re.compile(r"(?<=\d)\.{2,3}(?=v\d)")  # v1.0...v1.1
_ANY_MINOR = re.compile(r"(?<=\w)\.(?=x(?!\w))")  # 3.x
_RUN = re.compile(r"[A-Za-z]++|\d++")
_MEASURED = re.compile(r"\d+(?:st|nd|rd|th|s|x|k|K|M|B|bn|tn|mn)|\d+(?:-[a-z]{2,}\d*)+|\d+(?:-\d+)*", re.IGNORECASE)


def _phone(found: re.Match[str]) -> str:
    said = ["eight hundred" if group == "800" else digits(group) for group in re.findall(r"\d+", found.group())]
    return ("plus " if found.group().startswith("+") else "") + ", ".join(said)


def _national(found: re.Match[str]) -> str:
    groups = re.findall(r"\d+", found.group())
    is_date = [len(group) for group in groups] in ([2, 2, 4], [2, 2, 2])
    most = 14 if groups[0].startswith(("00", "011")) else 12
    is_span = "-" in found.group() and all(re.fullmatch("(?:[01]\\d|2[0-4])[0-5]\\d", group) for group in groups)
    is_phone = (
        not is_span and 8 <= sum(map(len, groups)) <= most and (len(groups) > 2 or len(groups[-1]) > 3) and not is_date
    )
    return _phone(found) if is_phone else found.group()


def _words_dialled(found: re.Match[str]) -> str:
    parts = [part.lower() if part.isalpha() else digits(part) for part in found[2].split("-")]
    return f"one eight {'hundred' if found[1].endswith('00') else digits(found[1][3:])}, {', '.join(parts)}"


def read_phones(text: str) -> str:
    """Spell out telephone, card and zip numbers, and dialled codes, digit by digit."""
    text = _IBAN.sub(lambda found: re.sub(r"(?<=\w)(?=\w)", " ", found.group().replace(" ", ", ")), text)
    text = _NATIONAL.sub(_national, _PHONE.sub(_phone, _EXTENSION.sub(" extension ", text)))
    text = _WORDS_DIALLED.sub(_words_dialled, text) if "1-8" in text else text
    text = _EITHER_DIALLED.sub(lambda found: f"{found[1]}{digits(found[2])}{found[3]}{digits(found[4])}", text)
    text = _DIALLED.sub(lambda found: f"{found[1]} {', '.join(map(digits, re.split('[ -]', found[2])))}", text)
    text = _OWN_NUMBER.sub(lambda found: found[1] + digits(found[2]), text)
    return _ZIP.sub(lambda found: ", ".join(digits(part) for part in found.groups() if part), text)


def _address(found: re.Match[str]) -> str:
    said = " dot ".join(digits(part) for part in found[1].split("."))
    return said + (f" colon {run(found[2][1:])}" if found[2] else "")


_ENGINE = re.compile(r"[ -](?:engines?|motors?|petrol|diesel|trucks?|powered|turbo|twin|cars?|sedan|coupe)\b")


def _version(found: re.Match[str]) -> str:
    number = found[1] or found[2] or found[4]
    said = " point ".join(
        digits(part) if part[0] == "0" and len(part) > 1 else cardinal(int(part)) for part in number.split(".")
    )
    if found[1] and re.search(r"\b[Vv]er(?:sion|\.)? $", text_before(found, 10)):
        return said
    is_engine = found.group()[0] == "V" or _ENGINE.match(found.string, found.end())
    if found[1] and is_engine and "." not in number:
        return f"V {said}"  # a V8 engine
    return f"version {said}" if found[1] else f"{found[3]} {said}" if found[3] else said


_PLURAL_NUMBER = re.compile(r"(?<![\w.,'$£€/-])(7[0-8]7|911|501)s(?!\w)")  # 747s
_PLURAL_AFTER = re.compile(r"\b(?:took|takes?|for|after|within|every|waits?|in|lasts?|lasted|than|about|by|to) $")
_NUMBERED_ERS = re.compile(r"(?<![\w.,-])(\d\d)ers\b")  # 49ers
_FOURS = re.compile(r"(?<![\w.,])(\d{1,2})[x×](\d{1,2})s(?!\w)")  # 4x4s
_MODEL_PLURAL = re.compile(
    r"(?:(?<=[GR]TX )|(?<=Model )|(?<=PlayStation )|(?<=iPhone )(?![456]s))(\d{1,4})s(?!\w)|(?<=iPhone )([456])s(?!\w)"
)
_NAME_IN_PAIRS = re.compile(
    r"(?:(?<=\bRX )|(?<=[GR]TX )|(?<=GeForce )|(?<=Radeon )|(?<=\bForm )|(?<=\bForms ))\d{4}(?!\w)"
    r"|(?:(?<=\b[Aa] )(?:10(?:40|99)|404|7[0-8]7)|(?<=\b[Tt]he )7[0-8]7(?!\w))(?![\w.,$-]*\d| [a-z]{1,20}s\b)"
    r"|(?:(?<=\bLevi's )501|501(?= jeans))\b"
    r"|(?<![\w.,$£€-])[45]0\d(?= (?:errors?|status|responses?|Not Found)\b)"
)
_AIRLINE = re.compile(r"(?<![\w.-])(UA|AA|DL|BA|AF|LH|KL|EK|QF|SQ|WN|LX|TK|QR|EY|IB|NH) (\d{3,4})(?![\w.,%°$-]*\d)")
_JET = re.compile(
    r"(?<![\w.,/-])(7[0-8]7)( MAX\b|(?=X\b)|(?= (?:Max|Dreamliner|jets?|aircraft|planes?|airliners?|freighters?)\b))"
)
_NINE_ELEVEN = re.compile(r"(\b(?:his|her|my|your|their|classic|vintage) )911(?![\w.,-]*\d)", re.IGNORECASE)
_EMERGENCY = re.compile(
    r"(\b(?:call\w{0,3}|dial\w{0,4}|phon\w{1,3}|rang|ring|(?<!\d )or(?= 911(?! \w))) )911(?![\w.,-]*\d)"
    r"|(?<![\w.,$/-])911(?=[ -](?:calls?|callers?|operators?|dispatch\w{0,4}|cent(?:er|re)s?|emergency|services?|"
    r"tapes?|recordings?)\b)",
    re.IGNORECASE,
)
_MANY = re.compile(r"(?<![\w.,$£€/-])(10|100|1,?000)s(?= of\b)")
_BATTING = re.compile(r"(\b(?:hits?|hitting|bats|batt(?:ed|ing)|averag(?:e|ed|ing)|slugging) )\.(\d{3})(?!\w|\.\d)")
_PIXELS = re.compile(r"(?<![\w.,])(\d{4}) ?[x×] ?(\d{3,4})(?![\w.,]*\d| ?(?:[mck]?m|ft|in)\b)")
_HUNDREDS = re.compile(r"(?:(?<=[Tt]he )|(?<=\d00s and ))([1-9]00)s(?!\w)")
_MANY_NAMES = {"10": "tens", "100": "hundreds", "1000": "thousands"}
_AIRLINER = re.compile(r"(?<![\w.,/-])(7[0-8]7)-([1-9]00|[89]|10)([A-Z]{0,3})(s?)(?![\w-])")
_PARAGRAPH = re.compile(r"(?<![\w.])(\d{2,4})\(([a-n])\)(?:\((\d{1,2}|[a-z])\))?(?!\w)")  # 401(k)
_COMPANY = re.compile(
    r"(?<![\w.,$£€-])3M\b(?! (?:more|other|people|of|users|views|copies|customers|units|rows|jobs)\b)"
)
_COUNTED = re.compile(
    r"\b(?:over|about|than|nearly|almost|around|to|reached|hit|has|have|had|some|another|with) $", re.IGNORECASE
)


def _airliner(found: re.Match[str]) -> str:
    last = cardinal(int(found[2]))
    letters = f" {_spell(found[3], found[4])}" if found[3] else ""
    return f"{run(found[1])} {plural_number(last) if found[4] and not letters else last}{letters}"


def _plural_number(found: re.Match[str]) -> str:
    is_time = _PLURAL_AFTER.search(text_before(found, 8))
    return found.group() if is_time else plural_number(run(found[1]))


def _read_designations(text: str) -> str:
    """Spell out the names of aircraft, companies and clauses, and the plurals of numbers that are names."""
    text = _NUMBERED_ERS.sub(lambda found: f"{cardinal(int(found[1])).removesuffix('e')}ers", text)
    text = _FOURS.sub(lambda found: f"{cardinal(int(found[1]))} by {plural_number(cardinal(int(found[2])))}", text)
    text = _AIRLINER.sub(_airliner, text)
    text = _NAME_IN_PAIRS.sub(lambda found: run(found.group()), text)
    text = _AIRLINE.sub(lambda found: f"{found[1]} {run(found[2])}", text)
    text = _EMERGENCY.sub(lambda found: f"{found[1] or ''}nine one one", text)
    text = _NINE_ELEVEN.sub(lambda found: f"{found[1]}nine eleven", text)
    text = _JET.sub(lambda found: run(found[1]) + (found[2].title() or " " * (text_after(found, 1) == "X")), text)
    text = _MODEL_PLURAL.sub(
        lambda found: plural_number(run(found[1])) if found[1] else f"{cardinal(int(found[2]))} s", text
    )
    text = _BATTING.sub(lambda found: found[1] + run(found[2]), text)
    text = _PIXELS.sub(lambda found: f"{run(found[1])} by {run(found[2])}", text)
    text = _MANY.sub(lambda found: _MANY_NAMES[found[1].replace(",", "")], text)
    text = _HUNDREDS.sub(lambda found: plural_number(cardinal(int(found[1]))), text)
    text = _PLURAL_NUMBER.sub(_plural_number, text)
    text = _PARAGRAPH.sub(lambda found: " ".join([run(found[1]), *filter(None, found.groups()[1:])]), text)
    return _COMPANY.sub(lambda found: "3M" if _COUNTED.search(text_before(found, 8)) else "three M", text)


def read_labels(text: str) -> str:
    """Spell out IP addresses, versions, model names, and the numbers of rooms, flights and houses."""
    text = _read_designations(text)
    text = _ADDRESS.sub(lambda found: found.group() if ":" in found[1] else _address(found), text)
    text = _ROWS.sub(" to ", text)
    text = _STANDARD.sub(lambda found: f"{found[1]} dot {run(found[2])}", text)
    text = _PRERELEASE.sub(lambda found: f" {found[1].replace('rc', 'R C')} {found[2] or ''}".rstrip(), text)
    text = _GLUED_VERSION.sub(" v", text)
    text = _VERSION.sub(_version, _FROM_VERSION.sub(" to ", text))
    text = _ANY_MINOR.sub(" point ", text)
    text = _PLACE.sub(lambda found: f"{found[1]} {run(found[2])}{' ' * bool(found[3])}{found[3]}", text)
    return _HOUSE.sub(lambda found: f"{run(found[1])}{' ' * bool(found[2])}{found[2]} ", text)


def run(number: str) -> str:
    """Spell out a number that is a name: up to four digits in pairs; more, or with a leading zero, one by one."""
    is_short = len(number) <= 4 and not (len(number) > 1 and number[0] == "0")
    return paired(int(number)) if is_short else digits(number)


def _is_word(part: str) -> bool:
    return _VOWEL.search(part) is not None and (part.istitle() or (len(part) > 2 and not _FORMULA.fullmatch(part)))


def _mixed(found: re.Match[str]) -> str:
    token = found.group()
    if _MEASURED.fullmatch(token) and not re.fullmatch(r"\d{3,}X", token):  # Ryzen 7950X
        return token
    is_serial = re.search(r"[A-Za-z]\d{5}|\d{5}[A-Za-z]", token) is not None
    said: list[str] = []
    is_plural = token[0].isalpha() and re.search(r"(?<!^k)\ds$", token)  # B-52s, MP3s
    for part in _RUN.findall(token[:-1] if is_plural else token):
        if part.isdecimal():
            said.append(digits(part) if is_serial else written(part) if len(part) <= 2 else run(part))
        elif said and len(part) < 5 and re.fullmatch("[A-Z]+s", part):  # 350Zs
            said.append(" ".join((*part[:-2], letter_with_s(part[-2]))))
        elif part.upper() in SAID or len(part) == 1 or _is_word(part):
            said.append(part)
        else:
            said.append(" ".join(part))
    return plural_number(" ".join(said)) if is_plural else " ".join(said)


def read_identifiers(text: str) -> str:
    """Spell out mixed letters and digits: A4, COVID-19, H2O."""
    text = _SPAN.sub(lambda found: f"{found[1]}{found[2]} to " if int(found[2]) < int(found[3]) else found[0], text)
    return _MIXED.sub(_mixed, text)


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
_HIDDEN = re.compile(r"(?<![^\s(\"'`])\.(?=[a-z][\w-]{2}|(?:py|rs|md|js|ts|go|sh|gz)\b|NET\b)|(?<=\bASP)\.(?=NET\b)")
_PATH = re.compile(
    r"(?<![^\s(\"'])(?:(?:~|\.{1,2}|[A-Z]:)(?:[/\\][\w.+-]{1,80}){1,20}|(?:[/\\][\w.+-]{1,80}){2,20})[/\\]?"
)
_OPTION = re.compile(
    r"(?<!\S)--(?=[a-z]{2})|(?:(?<=[a-z]{2} )|(?<=[,:] ))-(?=[B-HJ-Zb-z](?![\w'-])|[Aa](?![\w'-]| \w))"
)
# 0x7f, #ff5733, 2001:db8::1, 00:1a:2b:3c:4d:5e
_HEX = re.compile(
    r"(?<![\w#&])(0x[\da-f]{0,16}|#(?=[a-f]{0,5}\d)(?=\d{0,5}[a-f])[\da-f]{6})(?!\w)"
    r"|(?<![\w:.])(?=[\da-f:]{3,39}(?![\w:]))((?:[\da-f]{0,4}:){2,7}[\da-f]{0,4})(?!\w)",
    re.IGNORECASE,
)
_SERIAL = re.compile(r"#(\d{1,12}(?:-\d{1,12}){1,4})([A-Z]?)(?![\w-])")
_TAG = re.compile(r"(?<![\w&#/])#(\w{1,100})")
_NAME = re.compile(r"(?<![\w@.])@(\w[\w.]{0,50}\w|\w)(?![@\w])")
_LINK_PARTS = re.compile(r"[A-Za-z]++|\d++|[^A-Za-z0-9]")
# Acronyms that may be followed by lower case, as in AIforAll. Other capitals there might be words: AMillion, IDo.
_GLUED = words("AI DJ EU EV HR ML PC PR QA TV UI UK UN US UX VR") + [each for each in SPELT if len(each) > 2]
_CAMEL = re.compile(
    rf"PhD|iOS|(?:{'|'.join(sorted(_GLUED, key=len, reverse=True))})(?=[a-z]{{2}})|\d++[A-Z](?![a-z])|"
    r"[A-Z]+(?=[A-Z][a-z]|\b|\d|_)|[A-Z]?[a-z]++|\d++|[^\W\d_A-Za-z]++|[A-Z]+"
)
_SIGNS = signs(
    ".=dot, /=slash, ?=question mark, ==equals, &=and, -=dash, _=underscore, #=hash, %=percent, :=colon, ~=tilde, "
    "+=plus, @=at, ,=comma, ;=semicolon, \\=backslash"
)
_SPELT_IN_LINKS = frozenset(each.lower() for each in SPELT if each not in ("IT", "AM", "US", "SEC", "ISO")) | word_set(
    "io uk de fr tv eu ch nl jp ca au es se js ts py md csv tsv txt html htm xml php asp exe cpp sh gz docx doc "
    "etc sql dll dmg mkv rs xlsx xls pptx ppt mp yaml yml https http ftp"
)


def _trimmed(link: str) -> tuple[str, str]:
    """Separate a link from trailing punctuation that belongs to the sentence."""
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


def _hex(found: re.Match[str]) -> str:
    if found[2] and not (found[2].count(":") > 4 or ("::" in found[2] and re.search(r"\d", found[2]))):
        return found.group()
    said = (cardinal(int(each)) if each.isdecimal() else each.upper() for each in found.group())
    return " ".join(_SIGNS.get(each, each) for each in said)


def _tag(found: re.Match[str]) -> str:
    word = found[1]
    if re.fullmatch(r"\d+|[A-Z]\d{3,}", word) or (word.isupper() and re.match(r"-\d{3}", text_after(found, 4))):
        return f"number {word}"
    return f"hashtag {' '.join(_CAMEL.findall(word)) or word}"


def read_links(text: str) -> str:
    """Spell out URLs, e-mail addresses, file names, hashtags and account names."""
    text = _OPTION.sub(lambda found: "dash " * len(found.group()), _HEX.sub(_hex, text))
    text = _PATH.sub(_url, text) if "/" in text or "\\" in text else text
    if "." in text or "://" in text or "localhost" in text:
        text = _HIDDEN.sub(lambda found: " " * text_before(found, 1).isalnum() + "dot ", text)
        text = _URL.sub(_url, text)
        text = _MAIL.sub(lambda found: _read_link(found.group()), text) if "@" in text else text
        text = _DOMAIN.sub(_url, text)
        text = _FILE.sub(lambda found: _read_link(found.group()), text)
        text = _HOST.sub(_url, text)
    if "#" in text:
        text = re.sub(r"(?<!\w)#(?= of\b)", "number", text)
        text = re.sub(r"\b([CFJ])#(?!\w)", r"\1 sharp", text)
        text = _SERIAL.sub(lambda found: f"number {', '.join(map(run, found[1].split('-')))} {found[2]}".rstrip(), text)
        text = _TAG.sub(_tag, text)
    if "@" in text:
        text = _NAME.sub(lambda found: "at " + _read_link(found[1]).replace(" underscore ", " "), text)
    return text


_MIXED_CASE = re.compile(r"\b(?:JPE?G|MPE?G|PhD|iOS|BSc|MSc|LaTeX|IoT|PaaS|SaaS|IaaS|pH|YoY|QoQ|MoM|TL;DR)('?s)?\b")
_MIXED_SAID = table(
    "JPEG=jay peg, JPG=jay peg, MPEG=em peg, MPG=M P G, PhD=P H D, iOS=i O S, BSc=B S C, MSc=M S C, IoT=I O T, "
    "SaaS=sass, PaaS=pass, IaaS=I A A S, LaTeX=lah-tech, pH=P H, YoY=year over year, "
    "QoQ=quarter over quarter, MoM=month over month, TL;DR=T L D R"
)
_BEGINS_SMALL = re.compile(r"(?<![\w'])([a-z])(?=[A-Z]{2,5}s?(?!\w))")  # mRNA
_ENDS_SMALL = re.compile(r"(?<![\w'])[A-Z]{2,5}[a-rt-z](?!\w)")  # NVMe, PCIe
_CONTRACTED = re.compile(r"(?<![\w'])([A-Z]{1,12})'(T|RE|VE|LL|D|M|S)(?!\w)")
_CLUSTER = re.compile("QU|(?:(?!QU)[B-DF-HJ-NP-TV-XZ]|^Y)+(?:QU)?")
_HARD_VOWELS = re.compile("^(?:[AIOU]{3}|AA|IA|IE|II|OE|UE|UI|UO|UU)|(?<!Q)[AEIOU]{4}|(?<!Q)UU|II(?!$)")
_JOINED = re.compile(r"(?<![\w&])([A-Z]{1,4}(?:&[A-Z]{1,4}){1,3})(?![\w&])")
_SMALL = frozenset(each.lower() for each in SPELT if len(each) > 2 and not re.search("[AEIOUY]|PST", each)) | {
    *words("npm php idk tbh imo imho omg fyi brb smh ngl afaik asap"),
}
_SMALL_INITIALISM = re.compile(rf"(?<![\w'./@-])(?:{'|'.join(sorted(_SMALL))})(?![\w'/@-]|\.\w)")  # html
_LETTERS_OF = re.compile(  # two Bs, straight As
    r"(?<![\w'.&-])(?!Ps\.)(?:([BCDFGHJKLNPQTWXYZ])s(?![\w'-]|\.? ?\d)|((?i:the|straight|all|mostly|two|three|four|"
    r"five|six|seven|eight|nine|ten|\d{1,2}) )([ARSV])s(?= (?:and|or|but|in|on|for|from|this)\b|[.,;:!?)]|$))",
    re.MULTILINE,
)
_CAPITALS = re.compile(r"(?<![\w'])([A-Z]{2,})(s'(?=\s)|s|'s|ed|ing|ers?)?(?![\w])(?:-(?=[A-Z]\b))?")
_TITLE = re.compile(r"\b[A-Z][a-z]{2,}+\b")
_NEXT = re.compile(r"[^\w.!?]{1,3}([A-Z]{2,20})\b")
_BEFORE = re.compile(r"\b([A-Z]{2,20})[^\w.!?]{1,3}$")
_CAPITAL_VOWEL = re.compile("[AEIOUY]")
_DRAWN = re.compile(r"([A-Za-z])\1\1")
_NEVER_DRAWN = re.compile("(?i:www|[clxv]{0,4}iii)")  # Roman numerals
_WORD = re.compile(r"[A-Za-z]++")
_REPEATED = re.compile(r"([A-Za-z])\1{2,}", re.IGNORECASE)
_MAX_RUNS = 4


@lru_cache(maxsize=4096)
def _is_pronounceable(word: str) -> bool:
    """Return whether a word's letter clusters occur in English words: those of MANUAL do, of MMLU and OECD do not."""
    if _HARD_VOWELS.search(word) or not _CAPITAL_VOWEL.search(word):
        return False
    clusters = [(found.start(), found.group()) for found in _CLUSTER.finditer(word)]
    return all(_is_cluster(each, start == 0, start + len(each) == len(word)) for start, each in clusters)


def _is_cluster(letters: str, is_first: bool, is_last: bool) -> bool:
    if len(letters) == 1:
        return True
    if is_first:
        return letters in ONSETS
    if is_last:
        return letters in CODAS or (letters[-1] == "S" and (len(letters) == 2 or letters[:-1] in CODAS))
    splits = ((letters[:cut], letters[cut:]) for cut in range(len(letters) + 1))
    return any((len(a) < 2 or a in CODAS) and (len(b) < 2 or b in ONSETS) for a, b in splits)


def _is_shouted(word: str) -> bool:
    if word in SAID or word in SPELT:
        return False
    if word in SHORT:
        return True
    is_long = len(word) > 7 and len(_CAPITAL_VOWEL.findall(word)) > 1  # too long for an acronym
    return 3 < len(word) <= 20 and (is_long or _is_pronounceable(word.removeprefix("MC")))


def _spell(word: str, ending: str) -> str:
    if ending in ("s", "'s", "s'"):
        return " ".join((*word[:-1], letter_with_s(word[-1])))
    return " ".join(word) + ending


def _capitals(found: re.Match[str], names: set[str]) -> str:
    word, ending = found[1], found[2] or ""
    tail = " " if found.group().endswith("-") else ""
    if word in SAID or len(word) > 20:
        return found.group()
    before = text_before(found, 25)
    if word in AMBIGUOUS or word in _CUES:
        near = [_NEXT.match(found.string, found.end()), _BEFORE.search(before)]
        if word == "OK":
            return f"okay{ending}{tail}"
        is_word = any(each and _is_shouted(each[1]) and each[1] not in _CUES for each in near)
        is_word = is_word or not (_is_lettered(found, before) or ending == "s")
        return (word.lower() + ending if is_word else _spell(word, ending)) + tail
    is_speaker = word.title() in GIVEN and text_after(found, 1) == ":"  # but ANN models
    if word not in SPELT and (_is_shouted(word) or word.title() in names or is_speaker):
        return word.lower() + ending + tail
    return _spell(word, ending) + tail


def _is_lettered(found: re.Match[str], before: str) -> bool:
    """Return whether a word that is also an initialism is one here, by the words before and after it."""
    word, end = found[1], found.end()
    if word in _CUES:
        if _CITY.search(before) and _AFTER_STATE.match(found.string, end):
            return True
        return _CUES[word][0].search(before) is not None or _CUES[word][1].match(found.string, end) is not None
    if found[2] == "'s" and word in ("IT", "WHO"):
        return before[-4:].lower() == "the "
    is_between = word in _BETWEEN and _BETWEEN[word][0].search(before) and _BETWEEN[word][1].match(found.string, end)
    return not is_between


def _mixed_case(found: re.Match[str]) -> str:
    ending = found[1] or ""
    said = _MIXED_SAID[found.group().removesuffix(ending)]
    return _spell(said.replace(" ", ""), ending) if ending and said[-2:-1] == " " else said + ending


def _contracted(found: re.Match[str]) -> str:
    word, ending = found[1], found[2]
    is_word = ending != "S" or (_is_shouted(word) and word not in _CUES)
    is_word = is_word or (word in ("IT", "WHO") and not text_before(found, 4).lower().endswith("the "))
    return f"{word if word == 'I' else word.lower()}'{ending.lower()}" if is_word else f"{word}'s"


def read_acronyms(text: str) -> str:
    """Spell out acronyms, and lower-case a word if its capitals are only emphasis."""
    text = _CONTRACTED.sub(_contracted, text) if "'" in text else text
    text = _MIXED_CASE.sub(_mixed_case, text)
    text = _BEGINS_SMALL.sub(r"\1 ", text)
    text = _ENDS_SMALL.sub(lambda found: plural(UNITS[found[0]]) if found[0] in UNITS else " ".join(found[0]), text)
    text = _JOINED.sub(lambda found: " and ".join(" ".join(part) for part in found[1].split("&")), text)
    text = _SMALL_INITIALISM.sub(lambda found: " ".join(found.group().upper()), text)
    text = _LETTERS_OF.sub(
        lambda found: letter_with_s(found[1]) if found[1] else f"{found[2]}{letter_with_s(found[3])}", text
    )
    return _CAPITALS.sub(partial(_capitals, names=set(_TITLE.findall(text))), text)


def _stretched(found: re.Match[str]) -> str:
    word = found.group()
    if not _DRAWN.search(word) or _NEVER_DRAWN.fullmatch(word):
        return word
    runs = list(_REPEATED.finditer(word))
    for lengths in product((2, 1), repeat=min(_MAX_RUNS, len(runs))):
        shortened = _shorten(word, runs, lengths)
        if shortened.lower() in DOUBLED:
            return shortened
    return _shorten(word, runs, ())


def _shorten(word: str, runs: list[re.Match[str]], lengths: tuple[int, ...]) -> str:
    """Shorten a word's runs of one letter to `lengths`; runs without a length become one letter."""
    parts, end = [], 0
    for number, each in enumerate(runs):
        parts += [word[end : each.start()], each.group()[: lengths[number] if number < len(lengths) else 1]]
        end = each.end()
    return "".join(parts) + word[end:]


def read_stretched(text: str) -> str:
    """Shorten elongated letters: sooooo is so, goooood is good."""
    return _WORD.sub(_stretched, text) if _DRAWN.search(text) else text
