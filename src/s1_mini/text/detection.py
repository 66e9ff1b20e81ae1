"""The language of a text: by its script, and by function words if the script is Latin.

`detect` only triggers a warning about text that is not English. `identify` selects the normalization rules for a text.
Both prefer a miss over a false alarm. Lists of words suffice; language models and n-gram detectors are 1 to 100 MB in
size.
"""

from __future__ import annotations

import re
import unicodedata
from collections import Counter
from collections.abc import Iterable
from itertools import groupby, pairwise
from operator import itemgetter

from s1_mini.text.split import sentence_spans
from s1_mini.text.tables import table, word_set, words

MAX_CHARACTERS = 2000  # enough to detect a language
MIN_SCORE = 2.0  # minimum number of function words of the language
MIN_SHARE = 0.3  # minimum share of all words
MAX_ENGLISH = 0.25  # maximum ratio of English function words to those of the language

LANGUAGES = table(
    "cs=Czech, da=Danish, de=German, en=English, es=Spanish, fi=Finnish, fr=French, hu=Hungarian, id=Indonesian, "
    "it=Italian, nl=Dutch, no=Norwegian, pl=Polish, pt=Portuguese, ro=Romanian, sv=Swedish, tr=Turkish, vi=Vietnamese"
)
_FUNCTION_WORDS = {
    "en": "the of and to in is you that it he was for on are as with his they i at be this have from or had by but "
    "what we when your can said there use an each which she do how their if will up other about out many then them "
    "these so some her would make like him has look more write go see no way could my than been who its now did get "
    "come may a not all were after before because where why over just only into our also me us very here any say says "
    "play please let put two one new time day don't it's i'm i'll you're that's isn't can't was've",
    "de": "der die das den dem des ein eine einen einem einer eines und oder aber nicht ist sind war waren wird werden "
    "wurde wurden ich du er sie es wir ihr mich dich uns euch sich mein meine meinen dein deine sein seine ihre ihren "
    "unser unsere ihrem in so man möchtest willst kannst musst machst mit von vom zu zum zur auf aus bei beim nach für "
    "über unter vor durch gegen ohne um im am an als wie wenn weil dass daß ob noch nur schon sehr auch hier dort "
    "heute morgen gestern jetzt immer kein keine keinen was wer wo wann warum haben hat hatte habe kann können muss "
    "müssen soll will möchte bitte danke guten tag geht gibt mehr viel viele dann doch ja nein zwischen bis wieder "
    "alle dieser diese dieses machen heißt uhr",
    "fr": "a votre dans arrivera le la les un une des du de et ou mais ne pas est sont était étaient sera serait je tu "
    "il elle on nous vous ils elles me te se mon ma mes ton ta tes son sa ses notre nos votre vos leur leurs ce cet "
    "cette ces qui que quoi dont où à au aux en dans sur sous avec sans pour par chez entre vers plus moins très bien "
    "aussi encore déjà toujours jamais tout tous toute toutes rien comme quand comment pourquoi combien parce si alors "
    "donc car être avoir ai as a avons avez ont fait faire peut peux veux voudrais suis es sommes êtes bonjour bonsoir "
    "merci oui non aujourd'hui hier demain ici là c'est j'ai n'est d'un d'une l'on qu'il qu'elle s'il il faut puis",
    "es": "el la los las un una unos unas y o pero no es son era eran fue fueron está están estoy soy yo tú él ella "
    "nosotros ustedes ellos ellas me te se nos lo le les mi mis tu tus su sus nuestro nuestra este esta estos estas "
    "ese esa eso aquel que quien qué cuál cómo cuándo dónde por para con sin de del al en sobre entre hasta desde muy "
    "más menos también ya siempre nunca todo todos toda todas nada algo porque si cuando donde como ha han he hay "
    "tiene tengo puede puedo quiero hacer hola gracias buenos días buenas sí hoy mañana ayer aquí allí ser estar",
    "it": "non so dove il lo la i gli le un uno una di del dello della dei degli delle a al allo alla ai agli alle da "
    "dal dalla in nel nella nei nelle su sul sulla con per tra fra e o ma non è sono era erano sei siamo io tu lui lei "
    "noi voi loro mi ti si ci vi mio mia tuo tua suo sua nostro nostra questo questa questi queste quello quella che "
    "chi cosa come quando dove perché quanto più meno molto anche ancora già sempre mai tutto tutti tutta niente se ho "
    "hai ha abbiamo hanno fare può posso vorrei essere avere ciao grazie buongiorno buona sera oggi domani ieri qui lì "
    "c'è dell'anno po' sì",
    "pt": "o a os as um uma uns umas e ou mas não é são era eram foi foram está estão estou sou eu tu ele ela nós você "
    "vocês eles elas me te se nos lhe meu minha seu sua nosso nossa este esta esse essa isso aquele que quem qual como "
    "quando onde porque por para com sem de do da dos das no na nos nas em ao à pelo pela sobre entre até desde muito "
    "mais menos também já sempre nunca tudo todos toda nada há tem tenho pode posso quero fazer olá obrigado obrigada "
    "bom dia boa sim hoje amanhã ontem aqui ali ser estar",
    "nl": "de het een en of maar niet is zijn was waren wordt worden ik jij je hij zij ze wij we jullie mij hem haar "
    "ons hun mijn jouw uw onze deze dit die dat wie wat waar wanneer waarom hoe van voor met zonder op in uit aan bij "
    "naar over onder tussen tot door om te als want omdat dan nog al ook wel heel veel meer altijd nooit alles niets "
    "heeft hebben heb had kan kunnen moet moeten wil willen zal gaan gaat hallo dank goedemorgen ja nee vandaag morgen "
    "gisteren hier daar er geen naar zou",
    "sv": "och att det som en ett på är av för med till den har de inte om men var jag du han hon vi ni sig så kan man "
    "när från hur vad vem där här ska skulle eller också mycket alla min din hans hennes vår mig dig oss dem efter "
    "mellan utan bara nu bra tack hej idag imorgon blir blev vill måste",
    "da": "og at det som en et på er af for med til den har de ikke om men var jeg du han hun vi sig så kan man når "
    "fra hvordan hvad hvem hvor her der skal skulle eller også meget alle min din hans hendes vores mig dig os dem "
    "efter mellem uden kun nu godt tak hej dag blev bliver vil må",
    "no": "og at det som en et på er av for med til den har de ikke om men var jeg du han hun vi seg så kan man når "
    "fra hvordan hva hvem hvor her der skal skulle eller også mye alle min din hans hennes vår meg deg oss dem etter "
    "mellom uten bare nå bra takk hei dag ble blir vil må",
    "pl": "i w na z do się nie jest to że o jak po co ale za od są był była było ja ty on ona my wy oni ten ta te tego "
    "tej który która które czy dla przez przed pod nad bardzo tak już tylko jeszcze mnie mi ci go jego jej ich mój "
    "moja gdzie kiedy dlaczego dziękuję proszę dzień dobry dzisiaj jutro mam ma być może oraz lub wszystko",
    "cs": "a v na se je že to z s do o i jak po co ale za od jsou byl byla bylo já ty on ona my vy oni ten ta ty který "
    "která které pro před pod nad velmi tak už jen ještě mě mi ho jeho její jejich můj kde kdy proč děkuji prosím "
    "dobrý den dnes zítra mám má být nebo není také všechno jsem",
    "fi": "ja on ei se että hän minä sinä me te he oli ovat olen mutta kun niin kuin myös joka mitä missä miksi vain "
    "nyt jo kaikki hyvin paljon tämä ne mukaan sekä tai jos kanssa ole olla voi kiitos hyvää päivää huomenna tänään",
    "hu": "a az és hogy nem is egy van volt ez azt de meg csak már még mint vagy ha én te ő mi ti ők nagyon itt ott ki "
    "mit hol mikor miért köszönöm kérem jó napot ma holnap kell lesz minden",
    "id": "yang dan di ke dari ini itu dengan untuk tidak adalah pada saya kamu dia kami kita mereka akan sudah bisa "
    "ada juga atau tetapi karena seperti oleh sangat apa siapa kapan mengapa bagaimana terima kasih selamat pagi hari",
    "ro": "și în la cu de pe un o nu este sunt era că care ce din pentru mai dar sau dacă eu tu el ea noi voi ei mă te "
    "se îi lui său sa acest această foarte aici acolo când unde cum fost are am ai au bună ziua mulțumesc azi mâine",
    "tr": "ve bir bu da de için ile çok ne ama daha gibi ben sen o biz siz onlar mi mı var yok değil olarak kadar "
    "sonra şey evet hayır nasıl nerede neden teşekkür ederim merhaba günaydın bugün yarın olan en her",
    "vi": "và là của có không được người một những trong cho các với này đã để tôi bạn anh chị em ông bà chúng rất "
    "cũng nhưng khi thì ở đến từ như vì sẽ đang cảm ơn xin chào hôm nay",
}
# Parts of names, which count half.
_PARTICLES = word_set("de la le les du des di da del della dos das el los las van von der den zu el al e y")
_TABLES = {language: frozenset(words(listed)) for language, listed in _FUNCTION_WORDS.items()}
# English words, and words of other languages that are also English or parts of English names.
_ENGLISH = _TABLES["en"].union(
    words(
        "am die war hat man den pour son plus sent fond mere comment pane sole met van under god men sin far tell till "
        "gift art rat bald wand hut long hand land bin dies most must wander al la"
    )
)
_WORD = re.compile(r"[^\W\d_]+(?:['’][^\W\d_]+)?")
_ACCENTED = re.compile(r"\A[a-z]*+[ß-öø-žșțơưạ-ỹ]")  # in lower case, so not a name
_ELIDED = re.compile(r"(?:[cdjlmnst]|qu)['’](?=[^\W\d_])")  # French and Italian: l'homme, c'est


# The language, or the script if several languages use it, by the first word of a letter's Unicode name.
_SCRIPTS = table(
    "HIRAGANA=ja, KATAKANA=ja, KATAKANA-HIRAGANA=ja, CJK=zh, HANGUL=ko, CYRILLIC=ru, LATIN=Latin, FULLWIDTH=Latin"
)
# Letters of Ukrainian, Belarusian, Serbian, Macedonian, Kazakh and Tatar, and ъ where only Bulgarian has it.
_NOT_RUSSIAN = re.compile("[ѓєѕіїјљњћќўџґѝәғқңөұүһҗ]|ъ(?![еёюя])", re.IGNORECASE)
MIN_KANA = 0.2  # minimum share of kana in a Japanese text; Chinese texts may have a few
MIN_BESIDE_LATIN = 0.5  # minimum ratio of another script to Latin letters, for texts with Latin names
# Minimum difference and ratio to the score of the second language, and minimum ratio to the number of words.
MIN_LEAD, MIN_FACTOR, MIN_WORDS = 1.0, 1.5, 0.2


def identify(text: str) -> str | None:
    """Return the tag of a text's language; None if it is not clear.

    The tag is "other" for scripts that are not in `_SCRIPTS`, and for Cyrillic text that is not Russian.
    """
    text = text[:MAX_CHARACTERS]
    sizes = Counter({"zh": 0})  # bytes of UTF-8, because a Chinese character is as long to speak as three letters
    for letter in filter(str.isalpha, text):
        sizes[_SCRIPTS.get(unicodedata.name(letter, "").partition(" ")[0], "other")] += len(letter.encode())
    latin, kana = sizes.pop("Latin", 0), sizes.pop("ja", 0)
    sizes["zh"] += kana
    [(script, size)] = sizes.most_common(1)
    if latin > size and (found := _identify_latin(text)):
        return found
    if size <= MIN_BESIDE_LATIN * latin:
        return None
    if script == "ru" and _NOT_RUSSIAN.search(text):
        return "other"
    return "ja" if script == "zh" and kana >= MIN_KANA * size else script


def _identify_latin(text: str) -> str | None:
    """Return the language with the most function words, if it leads clearly."""
    found = {word.replace("’", "'").lower() for word in _WORD.findall(text)}
    scores = {language: _score(found, listed) for language, listed in _TABLES.items()}
    scores["fr"] += sum(0.5 for word in found if _ELIDED.match(word) and word not in _TABLES["fr"])
    best = max(scores, key=lambda each: scores[each])
    score, second = scores.pop(best), max(scores.values())
    is_clear = score >= max(MIN_SCORE, second + MIN_LEAD, MIN_FACTOR * second, MIN_WORDS * len(found))
    return best if is_clear else None


def cut_by_language(text: str) -> list[tuple[str, str | None]]:
    """Cut a text into runs of sentences in one language, each with its tag, which is as in `identify`.

    A sentence whose language is not clear has that of the whole text.
    """
    whole = identify(text)
    ends = [stop for _, stop in sentence_spans(text)][:-1]
    sentences = [text[start:stop] for start, stop in pairwise((0, *ends, len(text)))]
    tags = [identify(sentence) or whole for sentence in sentences]
    if whole == "ja":  # `identify` returns zh for a Japanese sentence without kana
        tags = ["ja" if tag == "zh" else tag for tag in tags]
    runs = groupby(zip(sentences, tags, strict=True), itemgetter(1))
    return [("".join(sentence for sentence, _ in run), tag) for tag, run in runs]


def detect(text: str) -> str | None:
    """Return the language that a text is clearly written in, as a tag of `LANGUAGES`; None if unclear or English."""
    found = [word.replace("’", "'") for word in _WORD.findall(text[:MAX_CHARACTERS])]
    lowered = [word.lower() for word in found]
    scores = {language: _score(lowered, listed, _ENGLISH) for language, listed in _TABLES.items()}
    scores["fr"] += sum(1.0 for word in set(lowered) if _ELIDED.match(word) and word not in _TABLES["fr"])
    language = max(scores, key=lambda each: scores[each])
    accented = {word for word in found if _ACCENTED.match(word) and word not in _TABLES[language]}
    score = scores[language] + (0.5 * len(accented) if scores[language] >= 1 else 0)
    num_english = sum(word in _ENGLISH and word not in _TABLES[language] for word in lowered)
    if not found or score < MIN_SCORE or score < MIN_SHARE * len(set(lowered)) or num_english > MAX_ENGLISH * score:
        return None
    return language


def _score(found: Iterable[str], listed: frozenset[str], excluded: frozenset[str] = frozenset()) -> float:
    """Count the distinct function words of a language in `found`, which is in lower case, except `excluded` ones."""
    return sum(0.5 if word in _PARTICLES else 1.0 for word in (set(found) & listed) - excluded)
