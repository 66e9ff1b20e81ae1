"""The language whose words a checkpoint reads, and the checkpoint's alphabet.

A checkpoint of any family declares both in its `config.json`:
`"text": {"language": "en", "alphabet": " '(),-.:;?!ABC…"}`. Without this entry, the checkpoint gets all text unchanged.
"""

from __future__ import annotations

import re
import reprlib
import unicodedata
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from s1_mini.exceptions import CheckpointMismatchError, NothingToSpeakError, ParameterError, TextError
from s1_mini.text.reading import is_ornament, spoken
from s1_mini.text.tables import table, words
from s1_mini.text.tidy import is_speakable, tidied
from s1_mini.types import Normalize, OnUnsupported

# Language detection for Latin script, by function words. It only triggers a warning, so it prefers a miss over a false
# alarm: names, titles, quotations and single foreign words in an English text are not reported. Language models and
# n-gram detectors are 1 to 100 MB in size and misjudge short texts.
MAX_CHARACTERS = 2000  # enough to detect a language
MIN_SCORE = 2.0  # minimum number of function words of the language
MIN_SHARE = 0.3  # minimum share of function words in all words
MAX_ENGLISH = 0.25  # maximum number of English function words per function word of the language

LANGUAGES = table(
    "cs=Czech, da=Danish, de=German, en=English, es=Spanish, fi=Finnish, fr=French, hu=Hungarian, id=Indonesian, "
    "it=Italian, nl=Dutch, no=Norwegian, pl=Polish, pt=Portuguese, ro=Romanian, sv=Swedish, tr=Turkish, vi=Vietnamese"
)
_ENGLISH = frozenset(
    words(
        "the of and to in is you that it he was for on are as with his they i at be this have from or had by but what "
        "we when your can said there use an each which she do how their if will up other about out many then them "
        "these so some her would make like him has look more write go see no way could my than been who its now did "
        "get come may a not all were after before because where why over just only into our also me us very here any "
        "say says play please let put two one new time day don't it's i'm i'll you're that's isn't can't was've "
        "am die war hat man den also pour son plus sent fond mere comment pane sole come met van under god men sin "
        "far tell till gift art rat bald wand hut not long hand land bin dies so most must wander on of for had her "
        "him an do is as or over be we in was me no he by at up us my am are if it to al la"
    )
)
_FUNCTION_WORDS = {
    "de": "der die das den dem des ein eine einen einem einer eines und oder aber nicht ist sind war waren wird "
    "werden wurde wurden ich du er sie es wir ihr mich dich uns euch sich mein meine meinen dein deine "
    "sein seine ihre ihren unser unsere ihrem in so man möchtest willst kannst musst machst mit von vom "
    "zu zum zur auf aus bei beim nach für über unter vor durch gegen ohne um im am an als wie wenn weil "
    "dass daß ob noch nur schon sehr auch hier dort heute morgen gestern jetzt immer kein keine keinen "
    "was wer wo wann warum haben hat hatte habe kann können muss müssen soll will möchte bitte danke "
    "guten tag geht gibt mehr viel viele dann doch ja nein zwischen bis wieder alle dieser diese dieses "
    "machen heißt uhr",
    "fr": "a votre dans arrivera le la les un une des du de et ou mais ne pas est sont était étaient sera "
    "serait je tu il elle on nous vous ils elles me te se mon ma mes ton ta tes son sa ses notre nos "
    "votre vos leur leurs ce cet cette ces qui que quoi dont où à au aux en dans sur sous avec sans pour "
    "par chez entre vers plus moins très bien aussi encore déjà toujours jamais tout tous toute toutes "
    "rien comme quand comment pourquoi combien parce si alors donc car être avoir ai as a avons avez ont "
    "fait faire peut peux veux voudrais suis es sommes êtes bonjour bonsoir merci oui non aujourd'hui "
    "hier demain ici là c'est j'ai n'est d'un d'une l'on qu'il qu'elle s'il il faut puis",
    "es": "el la los las un una unos unas y o pero no es son era eran fue fueron está están estoy soy yo tú él "
    "ella nosotros ustedes ellos ellas me te se nos lo le les mi mis tu tus su sus nuestro nuestra este "
    "esta estos estas ese esa eso aquel que quien qué cuál cómo cuándo dónde por para con sin de del al "
    "en sobre entre hasta desde muy más menos también ya siempre nunca todo todos toda todas nada algo "
    "porque si cuando donde como ha han he hay tiene tengo puede puedo quiero hacer hola gracias buenos "
    "días buenas sí hoy mañana ayer aquí allí ser estar",
    "it": "non so dove il lo la i gli le un uno una di del dello della dei degli delle a al allo alla ai agli "
    "alle da dal dalla in nel nella nei nelle su sul sulla con per tra fra e o ma non è sono era erano "
    "sei siamo io tu lui lei noi voi loro mi ti si ci vi mio mia tuo tua suo sua nostro nostra questo "
    "questa questi queste quello quella che chi cosa come quando dove perché quanto più meno molto anche "
    "ancora già sempre mai tutto tutti tutta niente se ho hai ha abbiamo hanno fare può posso vorrei "
    "essere avere ciao grazie buongiorno buona sera oggi domani ieri qui lì c'è dell'anno po' sì",
    "pt": "o a os as um uma uns umas e ou mas não é são era eram foi foram está estão estou sou eu tu ele ela "
    "nós você vocês eles elas me te se nos lhe meu minha seu sua nosso nossa este esta esse essa isso "
    "aquele que quem qual como quando onde porque por para com sem de do da dos das no na nos nas em ao à "
    "pelo pela sobre entre até desde muito mais menos também já sempre nunca tudo todos toda nada há tem "
    "tenho pode posso quero fazer olá obrigado obrigada bom dia boa sim hoje amanhã ontem aqui ali ser "
    "estar",
    "nl": "de het een en of maar niet is zijn was waren wordt worden ik jij je hij zij ze wij we jullie mij hem "
    "haar ons hun mijn jouw uw onze deze dit die dat wie wat waar wanneer waarom hoe van voor met zonder "
    "op in uit aan bij naar over onder tussen tot door om te als want omdat dan nog al ook wel heel veel "
    "meer altijd nooit alles niets heeft hebben heb had kan kunnen moet moeten wil willen zal gaan gaat "
    "hallo dank goedemorgen ja nee vandaag morgen gisteren hier daar er geen naar zou",
    "sv": "och att det som en ett på är av för med till den har de inte om men var jag du han hon vi ni sig så "
    "kan man när från hur vad vem där här ska skulle eller också mycket alla min din hans hennes vår mig "
    "dig oss dem efter mellan utan bara nu bra tack hej idag imorgon blir blev vill måste",
    "da": "og at det som en et på er af for med til den har de ikke om men var jeg du han hun vi sig så kan man "
    "når fra hvordan hvad hvem hvor her der skal skulle eller også meget alle min din hans hendes vores "
    "mig dig os dem efter mellem uden kun nu godt tak hej dag blev bliver vil må",
    "no": "og at det som en et på er av for med til den har de ikke om men var jeg du han hun vi seg så kan man "
    "når fra hvordan hva hvem hvor her der skal skulle eller også mye alle min din hans hennes vår meg "
    "deg oss dem etter mellom uten bare nå bra takk hei dag ble blir vil må",
    "pl": "i w na z do się nie jest to że o jak po co ale za od są był była było ja ty on ona my wy oni ten ta "
    "te tego tej który która które czy dla przez przed pod nad bardzo tak już tylko jeszcze mnie mi ci go "
    "jego jej ich mój moja gdzie kiedy dlaczego dziękuję proszę dzień dobry dzisiaj jutro mam ma być może "
    "oraz lub wszystko",
    "cs": "a v na se je že to z s do o i jak po co ale za od jsou byl byla bylo já ty on ona my vy oni ten ta "
    "ty který která které pro před pod nad velmi tak už jen ještě mě mi ho jeho její jejich můj kde kdy "
    "proč děkuji prosím dobrý den dnes zítra mám má být nebo není také všechno jsem",
    "fi": "ja on ei se että hän minä sinä me te he oli ovat olen mutta kun niin kuin myös joka mitä missä miksi "
    "vain nyt jo kaikki hyvin paljon tämä ne mukaan sekä tai jos kanssa ole olla voi kiitos hyvää päivää "
    "huomenna tänään",
    "hu": "a az és hogy nem is egy van volt ez azt de meg csak már még mint vagy ha én te ő mi ti ők nagyon itt "
    "ott ki mit hol mikor miért köszönöm kérem jó napot ma holnap kell lesz minden",
    "id": "yang dan di ke dari ini itu dengan untuk tidak adalah pada saya kamu dia kami kita mereka akan sudah "
    "bisa ada juga atau tetapi karena seperti oleh sangat apa siapa kapan mengapa bagaimana terima kasih "
    "selamat pagi hari",
    "ro": "și în la cu de pe un o nu este sunt era că care ce din pentru mai dar sau dacă eu tu el ea noi voi "
    "ei mă te se îi lui său sa acest această foarte aici acolo când unde cum fost are am ai au bună ziua "
    "mulțumesc azi mâine",
    "tr": "ve bir bu da de için ile çok ne ama daha gibi ben sen o biz siz onlar mi mı var yok değil olarak "
    "kadar sonra şey evet hayır nasıl nerede neden teşekkür ederim merhaba günaydın bugün yarın olan en "
    "her",
    "vi": "và là của có không được người một những trong cho các với này đã để tôi bạn anh chị em ông bà chúng "
    "rất cũng nhưng khi thì ở đến từ như vì sẽ đang cảm ơn xin chào hôm nay",
}
# Parts of names, which count half.
_PARTICLES = frozenset(words("de la le les du des di da del della dos das el los las van von der den zu el al e y"))
_TABLES = {language: frozenset(words(listed)) for language, listed in _FUNCTION_WORDS.items()}
_WORD = re.compile(r"[^\W\d_]+(?:['’][^\W\d_]+)?")
_ACCENTED = re.compile("[a-z]*[ß-öø-žșțơưạ-ỹ]")  # in small letters, so not a name
_ELIDED = re.compile(r"(?:[cdjlmnst]|qu)['’](?=[^\W\d_])")  # French and Italian: l'homme, c'est


def detect(text: str) -> str | None:
    """Return the language that a text is clearly written in, as a tag of `LANGUAGES`; None if it is not clear."""
    found = [word.replace("’", "'") for word in _WORD.findall(text[:MAX_CHARACTERS])]
    lowered = [word.lower() for word in found]
    scores = {language: _score(lowered, listed) for language, listed in _TABLES.items()}
    scores["fr"] += sum(1.0 for word in set(lowered) if _ELIDED.match(word) and word not in _TABLES["fr"])
    language = max(scores, key=lambda each: scores[each])
    accented = {word for word in found if _ACCENTED.match(word) and word not in _TABLES[language]}
    score = scores[language] + (0.5 * len(accented) if scores[language] >= 1 else 0)
    num_english = sum(word in _ENGLISH and word not in _TABLES[language] for word in lowered)
    if not found or score < MIN_SCORE or score < MIN_SHARE * len(set(lowered)) or num_english > MAX_ENGLISH * score:
        return None
    return language


def _score(lowered: list[str], listed: frozenset[str]) -> float:
    """Count the distinct function words of a language in a text, except those that are also English."""
    return sum(0.5 if word in _PARTICLES else 1.0 for word in set(lowered) if word in listed and word not in _ENGLISH)


MAX_ALPHABET = 100_000
MAX_NAMED = 10  # characters in a warning

_LONELY = re.compile(r"\s+(?=[,.;:!?](?:\s|$))")  # white space before punctuation whose word was skipped
_PLAIN = {"ß": "ss", "æ": "ae", "œ": "oe", "ø": "o", "đ": "d", "ð": "d", "þ": "th", "ł": "l", "ı": "i", "ŋ": "ng"}
_PLAIN |= {"ẞ": "SS", "Æ": "Ae", "Œ": "Oe", "Ø": "O", "Đ": "D", "Ð": "D", "Þ": "Th", "Ł": "L", "Ŋ": "Ng"}
_PLAIN |= {"–": "-", "—": "-", "…": "...", "’": "'", "‘": "'", "“": '"', "”": '"', "„": '"', "[": "(", "]": ")"}


@dataclass(frozen=True)
class NormalizedText:
    """The text that is spoken for a request's text, and a warning for the client."""

    text: str
    warning: str | None = None  # skipped characters, or a text in another language


@dataclass(frozen=True)
class TextForm:
    """Language and alphabet of a checkpoint."""

    language: str | None = None  # language of the normalization; None: not normalized
    alphabet: frozenset[str] | None = None  # None: all characters

    @classmethod
    def from_config(cls, config: Mapping[str, Any]) -> TextForm:
        values = config.get("text")
        if values is None:
            return cls()
        if not isinstance(values, Mapping):
            raise CheckpointMismatchError(f"config.json: text={reprlib.repr(values)} must be an object")
        language, alphabet = values.get("language"), values.get("alphabet")
        if language is not None:
            try:
                spoken("1", language)  # load the rules now, not at the first request
            except ParameterError as error:
                raise CheckpointMismatchError(f"config.json: text.{error}") from None
        if alphabet is not None and not (isinstance(alphabet, str) and 0 < len(alphabet) <= MAX_ALPHABET):
            raise CheckpointMismatchError(
                f"config.json: text.alphabet={reprlib.repr(alphabet)} must be a string of 1 to {MAX_ALPHABET} "
                "characters"
            )
        return cls(language, None if alphabet is None else frozenset(alphabet))

    def script(
        self,
        text: str,
        max_length: int,
        *,
        choice: Normalize = "auto",
        on_unsupported: OnUnsupported = "error",
        continues: bool = False,
    ) -> NormalizedText:
        """Return the spoken form of a request's `text`. With `continues`, it is only the beginning of a sentence.

        `max_length` bounds the characters of the text and of its spoken form. Raises the errors of `tidied`,
        `TextError` for a spoken form that is too long and, with `on_unsupported="error"`, for an unsupported character,
        and `NothingToSpeakError` if nothing is left to speak.
        """
        tidy = tidied(text, max_length)
        is_read = choice != "off" and self.language is not None
        said = self._said(text, max_length) if is_read else tidy
        fitting, unsupported = self._fit(said)
        if unsupported and on_unsupported == "error":
            raise TextError("text", self._unsupported(fitting, unsupported, text, choice))
        if not is_speakable(fitting):
            skipped = _skipped(unsupported) if unsupported else None
            raise NothingToSpeakError("text", self._nothing(text, unsupported), skipped)
        if fitting != said:
            fitting = tidied(_LONELY.sub("", fitting), len(fitting))
        warnings = [_skipped(unsupported)] if unsupported else []
        if (other := self._other_language(tidy)) is not None:
            warnings.append(other)
        return NormalizedText(
            self._ended(fitting, "," if continues else ".") if is_read else fitting, " ".join(warnings) or None
        )

    def transcript(self, text: str) -> str:
        """Normalize the transcript of a reference, which was validated before; raises nothing."""
        said = spoken(text, self.language) if self.language is not None else text
        return " ".join(self._fit(said)[0].split())

    def _said(self, text: str, max_length: int) -> str:
        assert self.language is not None
        said = spoken(text, self.language)
        if len(said) > max_length:
            raise TextError(
                "text",
                f"has {len(said)} characters after normalization ({len(text)} as sent); the limit is {max_length}. "
                "Split the text or raise S1_MINI_MAX_TEXT_LENGTH.",
            )
        if not is_speakable(said):
            raise NothingToSpeakError("text", self._nothing(text, ""))
        return tidied(said, max_length)

    def _ended(self, text: str, mark: str) -> str:
        """Add a missing final mark, because a voice trained on sentences may stop before it says a bare "Hi"."""
        is_open = text[-1:].isalnum() and self.alphabet is not None and mark in self.alphabet
        return f"{text}{mark}" if is_open else text

    def _nothing(self, text: str, unsupported: str) -> str:
        shown = reprlib.repr(text)
        if not unsupported:
            return f"{shown} contains nothing to speak; send at least one letter, number or symbol"
        return f"{self._voice()}; it cannot pronounce any character of {shown}"

    def _voice(self) -> str:
        name = LANGUAGES.get((self.language or "").replace("_", "-").partition("-")[0])
        return f"this voice speaks {name}" if name else "this voice has a limited alphabet"

    def _unsupported(self, fitting: str, unsupported: str, sent: str, choice: Normalize) -> str:
        first = unsupported[0]
        place = _position(first, sent)
        where = "" if place is None else f" (character {place + 1})"
        way_out = "Remove it"
        if any(character.isalnum() for character in fitting):
            way_out += ', or set on_unsupported to "skip"'
        if choice == "off" and self.language is not None and not first.isalpha():
            way_out += ', or normalize to "auto", which reads numbers and symbols'
        return f"{self._voice()}; it cannot pronounce {first!r}{where}. {way_out}."

    def _other_language(self, text: str) -> str | None:
        """Return a warning for a text that is clearly not in the voice's language."""
        if (self.language or "").partition("-")[0] != "en" or (found := detect(text)) is None:
            return None
        return f"This voice speaks English; the text looks like {LANGUAGES[found]} and is read as English."

    def _fit(self, text: str) -> tuple[str, str]:
        """Return `text` in characters of the alphabet, and the unsupported ones, each once."""
        if self.alphabet is None or self.alphabet.issuperset(text):
            return text, ""
        outside: dict[str, None] = {}
        parts = []
        for character in text:
            if character in self.alphabet or character in " \n":
                parts.append(character)
                continue
            nearest = self._nearest(character)
            if nearest is None:
                outside[character] = None
            parts.append(nearest or "")
        return "".join(parts), "".join(outside)

    def _nearest(self, character: str) -> str | None:
        """Return a character's replacement in the alphabet: empty if it has no reading, None if unsupported."""
        assert self.alphabet is not None
        for form in (_PLAIN.get(character), unicodedata.normalize("NFKD", character)):
            if form is not None:
                bare = "".join(each for each in form if not unicodedata.combining(each))
                bare = "".join(_PLAIN.get(each, each) for each in bare)
                if bare and self.alphabet.issuperset(bare.replace(" ", "")):
                    return bare
        return "" if unicodedata.category(character)[0] in "PZMC" or is_ornament(character) else None


def _skipped(unsupported: str) -> str:
    named = ", ".join(repr(each) for each in unsupported[:MAX_NAMED])
    more = f" and {len(unsupported) - MAX_NAMED} more" if len(unsupported) > MAX_NAMED else ""
    return f"Skipped characters that this voice cannot pronounce: {named}{more}."


def _position(character: str, sent: str) -> int | None:
    """Find a character in the text as it was sent, where it may have another Unicode form."""
    place = sent.find(character)
    if place >= 0:
        return place
    forms = {character, unicodedata.normalize("NFD", character)[0]}
    found = (number for number, each in enumerate(sent) if forms.intersection(unicodedata.normalize("NFKC", each)))
    return next(found, None)
