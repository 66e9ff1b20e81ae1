"""A model that reads digits itself gets words only where a number has one reading, in the language of each sentence."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from s1_mini.alignment.written import divide, find_groups, find_written, keys
from s1_mini.exceptions import TextError
from s1_mini.families.qwen3.voice import TAGS
from s1_mini.text.detection import cut_by_language, identify
from s1_mini.text.form import TextForm
from s1_mini.text.multilingual import MULTILINGUAL, read_certain
from s1_mini.text.reading import spoken, spoken_certain
from s1_mini.text.split import sentence_spans
from tests.text.test_form import ROWS

READ = [
    # numbers, decimals
    ("de", "Von 3 Katzen fraßen 2,5 je -5 Mäuse.", "Von drei Katzen fraßen zwei Komma fünf je minus fünf Mäuse."),
    ("fr", "Les 25 000 habitants ont 1,25 enfant.", "Les vingt-cinq mille habitants ont un virgule vingt-cinq enfant."),
    ("es", "Son 3 casas y 2,05 litros.", "Son tres casas y dos coma cero cinco litros."),
    (
        "it",
        "L'8 marzo 12.500 persone, 0,5 litri.",
        "L'otto marzo dodicimilacinquecento persone, zero virgola cinque litri.",
    ),
    ("pt", "Os 15 alunos têm 1,5 metro.", "Os quinze alunos têm um vírgula cinco metro."),
    ("zh", "共1,234,567人，圆周率3.14，零下-5度。", "共一百二十三万四千五百六十七人，圆周率三点一四，零下-5度。"),
    ("ja", "猫が2匹、人口は12,000人、3.05キロ。", "猫が二匹、人口は一万二千人、三点零五キロ。"),
    ("ko", "3,500명, 원주율 3.14", "삼천오백명, 원주율 삼점일사"),
    # percentages
    ("de", "Das sind 25 % oder 0,5%.", "Das sind fünfundzwanzig Prozent oder null Komma fünf Prozent."),
    ("fr", "21 % puis 80 %.", "21 pour cent puis quatre-vingts pour cent."),
    ("es", "El 25 % (o 3,5%).", "El veinticinco por ciento (o tres coma cinco por ciento)."),
    ("it", "Il 25% di sconto.", "Il venticinque per cento di sconto."),
    ("pt", "Subiu 10%.", "Subiu dez por cento."),
    ("zh", "增长2％，降25.5%。", "增长百分之二，降百分之二十五点五。"),
    ("zh", "是 -5%。", "是 负百分之五。"),
    ("ja", "５００円、１２時。", "五百円、十二時。"),
    ("ja", "25%増です。", "二十五パーセント増です。"),
    ("ko", "25% 증가", "이십오 퍼센트 증가"),
    # money
    ("de", "Es kostet 3,50 €, nicht $20.", "Es kostet drei Euro fünfzig, nicht zwanzig Dollar."),
    ("fr", "Ça coûte 1,50 € ou 200 $.", "Ça coûte 1 euro cinquante ou deux cents dollars."),
    ("es", "Cuesta 3,50 € o 1 €.", "Cuesta tres euros con cincuenta o 1 euro."),
    ("it", "Costa 3,05 €.", "Costa tre euro e cinque."),
    ("pt", "Custa R$ 3,50.", "Custa três reais e cinquenta."),
    ("zh", "价格是¥3.50，约$2。", "价格是三点五零元，约二美元。"),
    ("ja", "価格は¥1,500です。", "価格は千五百円です。"),
    ("ko", "₩25,000 또는 $5", "이만 오천 원 또는 오 달러"),
    # times
    ("de", "Um 14:05 Uhr, um 1:00 Uhr.", "Um vierzehn Uhr fünf, um 1 Uhr."),
    ("fr", "À 14h05, à 1h, à 20:30.", "À quatorze heures cinq, à 1 heure, à vingt heures trente."),
    ("es", "A las 14:05 o a las 15:00.", "A las catorce y cinco o a las quince."),
    ("it", "Alle 14:05.", "Alle quattordici e cinque."),
    ("pt", "Às 14h05 ou às 8:30.", "Às catorze horas e cinco ou às oito horas e trinta."),
    ("zh", "下午2：30。", "下午2点三十分。"),
    ("zh", "下午14:05见，上午2:30走。", "下午十四点零五分见，上午2点三十分走。"),
    ("ja", "14:05に着く。", "十四時五分に着く。"),
    ("ko", "오후 2:30에", "오후 2시 30분에"),
    # dates and years
    ("de", "Am 03.05.2021 und am 2024-12-24.", "Am 3. Mai zweitausendeinundzwanzig und am 24. Dezember 2024."),
    ("fr", "Le 01/05/2021.", "Le premier mai 2021."),
    ("es", "El 3/5/2020.", "El tres de mayo de dos mil veinte."),
    ("it", "Il 01/05/2020.", "Il primo maggio duemilaventi."),
    ("pt", "Em 03/05/2020.", "Em três de maio de 2020."),
    ("ru", "Встреча 03.05.2021 в Москве.", "Встреча 3 мая 2021 года в Москве."),
    ("zh", "2021年5月3日，或2021-05-03。", "二〇二一年五月三日，或二〇二一年五月三日。"),
    ("ja", "2021/5/3に。", "二千二十一年五月三日に。"),
    ("ko", "2021-05-03", "2021년 5월 3일"),
    # ordinals
    ("fr", "Le 1er, la 1re, le 2e et la 21ème.", "Le premier, la première, le deuxième et la vingt-et-unième."),
    ("es", "La 3.ª vez, el 2.º piso.", "La tercera vez, el segundo piso."),
    ("fr", "Le 2nd, en 2nde.", "Le second, en seconde."),
    ("it", "Il 1º e la 3ª.", "Il primo e la terza."),
    ("pt", "O 1º e a 2ª.", "O primeiro e a segunda."),
    ("zh", "第2名和第12名。", "第二名和第十二名。"),
    ("ja", "第3回。", "第三回。"),
    ("ko", "제3장", "제삼장"),
]
# Gender, case, a counted word or a convention decides; codes, ranges, units; notations of other countries.
UNCHANGED = [
    ("de", "Ich habe 1 Kind; 1984, am 3. Mai, 17 Mai; 80er; 5-10 %; 30 - 40 m2; 5 km; DIN A4; 12345; Platz 3."),
    ("de", '0171 234567; 3:16; +49 (0)30 123456; 123 456 789; ein Monitor mit 27" und einer mit 5″.'),
    ("de", "Es kostet 3,50 Euro, EUR 12,99 oder 3,- €; 2 x 3; √2; €5 Tsd."),
    ("fr", "Jean 3:16; ratio 1:50; vidéo 3:45; 2e-5; 5e/6e; 22nd; SIREN 732 829 320; 3,50 euros; 1,5 L; 2 t."),
    ("es", "3.º B; 3.er; hace 35º; Juan 3:16; Carla 3:16; 20º de temperatura; versión 2.x."),
    ("it", "800.123.456; € 3,5 mln; 2,50 euro; Giovanni 3:16; 20º."),
    ("pt", "(11) 91234-5678; 25º de temperatura; 3,50 reais."),
    ("ru", "03.05.2021 года; перед 03.05.2021 годом; 03.05.2021 г."),
    ("zh", "比分3:10；9：00；80后；98年；95折；$5百万；3，500元；第007集；版本2.x。"),
    ("ja", "３，５００円; ００７; 3:16; 9:00〜10:00."),
    ("ko", "어제3시, 숙제3개; 3.1절; 6.25 전쟁; 비율 1:10."),
    ("fr", "Elle a 21 ans; 1 fille; en 1984; 06 12 34 56 78; 5 km/h; 10-15; 1.234; 1 000 000 €."),
    ("es", "200 casas; 1.234 o 1,234; 600 123 456; el 1.º piso; $3.50; 20 ºC; 2x; $20."),
    ("it", "1 gatto e 21 case; 333 123 4567; v2.0; 3/4."),
    ("pt", "2 casas; 912 345 678; R$ 2 milhões; US$ 5; 31/13/2021."),
    ("ru", "У меня 5 яблок, с 5 яблоками; 3,50 руб.; 25 %; $100; 14:05; 1 234 567 человек."),
    ("zh", "我有2个苹果；2024；200人；3-5天；5km；13800138000；192.168.0.1；¥100元；911；8·25。"),
    ("ja", "03-1234-5678、5km、A4、2.0.1。"),
    ("ko", "사과 3개, 오후 3시 30분, 2021년 5월 3일, 010-1234-5678."),
]
PAGE = (Path(__file__).parents[2] / "docs" / "languages.md").read_text(encoding="utf-8")
TABLE = [line for line in PAGE.splitlines() if line.startswith("| ") and not line.startswith("| language")]
NOISE = "0123456789 .,:;/-$€%'\"()#@&+=~^kmhx°½²ºª年第제日か\u00a0R"


@pytest.mark.parametrize(("tag", "written", "said"), READ)
def test_what_has_one_reading_becomes_words_and_stays_so(tag: str, written: str, said: str) -> None:
    assert read_certain(written, tag) == said
    assert read_certain(said, tag) == said


@pytest.mark.parametrize(("tag", "written"), UNCHANGED)
def test_what_has_several_readings_stays_as_it_is_written(tag: str, written: str) -> None:
    assert read_certain(written, tag) == written


@pytest.mark.parametrize("tag", sorted(MULTILINGUAL))
def test_no_word_next_to_a_number_is_lost_and_text_without_digits_is_unchanged(tag: str) -> None:
    draw = random.Random(7)
    for _ in range(200):
        pieces = ["".join(draw.choices(NOISE, k=draw.randint(1, 12))) for _ in range(6)]
        said = read_certain(" Wort ".join(pieces), tag)

        assert said.count("Wort") == 5
    for _, sentence in ROWS:
        if not any(character.isdigit() for character in sentence):
            assert read_certain(sentence, tag) == sentence


@pytest.mark.parametrize("row", [line.strip("| \n").split(" | ") for line in TABLE])
def test_the_page_says_what_is_read(row: list[str]) -> None:
    tag = TAGS[row[0].lower()]
    point, group = {"fr": (",", " "), "zh": (".", ","), "ja": (".", ","), "ko": (".", ",")}.get(tag, (",", "."))
    time_of_day = "14:05 Uhr" if tag == "de" else "14:05"
    written = ["15", f"12{group}500", f"3{point}14", "25 %", f"3{point}50 €", time_of_day, "2020-05-03"]

    said = [read_certain(each, tag) for each in written]

    assert row[1:6] + row[7:9] == ["–" if one == other else one for one, other in zip(said, written, strict=True)]
    for sign in "$£¥₩":
        assert (read_certain(f"{sign}20.", tag) != f"{sign}20.") == (sign in row[6].split())
    for ordinal in () if row[9] == "–" else row[9].split(", "):
        assert read_certain(ordinal, tag) != ordinal


def test_sentences_of_the_ten_languages_are_found_or_left_open() -> None:
    found = [(language, identify(sentence)) for language, sentence in ROWS if language in MULTILINGUAL | {"en"}]
    foreign = [tag for language, tag in found if language != "en"]

    assert len(foreign) >= 50
    assert foreign.count(None) <= len(foreign) // 10
    # At most three are wrong: English sentences with titles and names, such as "Mas que nada was a hit."
    assert sum(tag not in (language, None) for language, tag in found) <= 3


@pytest.mark.parametrize(
    ("text", "tag"),
    [
        ("这是3只猫。", "zh"),
        ("我用 iPhone 15 Pro。", "zh"),
        ("これは3匹です。", "ja"),
        ("고양이 3마리", "ko"),
        ("У меня 3 кота.", "ru"),
        ("У мене є 3 коти.", "other"),
        ("Срещата е на 03.05.2021 г. в България.", "other"),
        ("Объявление о съезде.", "ru"),
        ("Έχω 3 γάτες.", "other"),
        ("The word 猫 means a cat.", "en"),
        ("5 + 5", None),
        ("OK, 5 Tests", None),
    ],
)
def test_the_script_tells_the_language_unless_several_languages_have_it(text: str, tag: str | None) -> None:
    assert identify(text) == tag


def test_each_sentence_is_read_in_its_own_language_and_an_unclear_one_in_that_of_the_text() -> None:
    text = "Das ist nicht alles, was wir haben; es ist auch mehr.\n\nMax: 3,50 €. 他有25%。 What is it? 5 €."

    assert [tag for _, tag in cut_by_language(text)] == ["de", "zh", "en", "de"]
    assert "".join(run for run, _ in cut_by_language(text)) == text
    assert spoken_certain(text, None) == (
        "Das ist nicht alles, was wir haben; es ist auch mehr.\n\nMax: drei Euro fünfzig. 他有百分之二十五。 "
        "What is it? fünf Euro."
    )


def test_english_is_read_by_its_own_rules_and_an_unknown_language_stays_as_it_is_written() -> None:
    text = "Dr. Smith paid $3.50 on May 3rd, 2021."

    assert spoken_certain(text, "en-GB") == spoken_certain(text, "en") == spoken(text)
    for other in ("Dr. Novák má 3 kočky, a **ne** 4.", "5 **mal** 5"):
        assert spoken_certain(other, "cs") == spoken_certain(other, None) == other


def test_roman_numerals_and_www_are_not_shortened_like_elongated_letters() -> None:
    assert spoken("Napoléon III: www.exemple.fr, sooo, viii", "fr") == "Napoléon III: www.exemple.fr, so, viii"


def test_a_request_chooses_the_language_of_a_checkpoint_with_a_choice() -> None:
    text = "Die 3 Katzen, das ist zu viel. **So!**"
    german = "Die drei Katzen, das ist zu viel. So!"

    given, found = TextForm("de", is_chosen=True), TextForm(is_chosen=True)

    assert given.script(text, 100).text == found.script(text, 100).text == german
    assert given.script(text, 100, choice="off").text == TextForm().script(text, 100).text == text
    assert TextForm("en", is_chosen=True).script(text, 100).text.startswith("Die three Katzen")
    with pytest.raises(TextError, match=r"has 74 characters after normalization \(16 as sent\); the limit is 40"):
        TextForm("fr", is_chosen=True).script("3,14159; 3,14159", 40)


def test_emphasis_and_wide_marks_reach_a_model_that_reads_them() -> None:
    assert (
        TextForm("zh", is_chosen=True).script("你好！真的吗？有3只“猫”😀。", 100).text == "你好！真的吗？有三只“猫”😀。"
    )


@pytest.mark.parametrize(
    ("text", "pieces"),
    [
        ("你好！真的吗？有3.5元。“好。”他说。", ["你好！", "真的吗？", "有三点五元。", "“好。”", "他说。"]),
        ("こんにちは。3.5です！本当？", ["こんにちは。", "三点五です！", "本当？"]),
        ("안녕하세요. 3.5입니다! 정말요?", ["안녕하세요.", "삼점오입니다!", "정말요?"]),
        ("Das sind ca. 3,5. Ist es gut? Ja!", ["Das sind ca. drei Komma fünf.", "Ist es gut?", "Ja!"]),
        ("C'est M. Dupont… « Oui ? » Non !", ["C'est M. Dupont…", "« Oui ? »", "Non !"]),
        ("¿Qué es? ¡Son las 3! Sí, Sr. Paz.", ["¿Qué es?", "¡Son las tres!", "Sí, Sr. Paz."]),
        ("Sono le 3. Va bene? Sì!", ["Sono le tre.", "Va bene?", "Sì!"]),
        ("Não são 3,5. Sra. Silva? Sim!", ["Não são três vírgula cinco.", "Sra. Silva?", "Sim!"]),
        ("Это 3,5 литра. Правда? Да!", ["Это 3,5 литра.", "Правда?", "Да!"]),
        ("It is 3.5, Dr. Smith. Is it? Yes!", ["It is three point five, Doctor Smith.", "Is it?", "Yes!"]),
    ],
)
def test_texts_of_all_ten_languages_are_split_at_their_sentences(text: str, pieces: list[str]) -> None:
    said = TextForm(is_chosen=True).script(text, 200).text

    assert [said[start:stop] for start, stop in sentence_spans(said)] == pieces


@pytest.mark.parametrize("language", ["de", None])
def test_spoken_words_belong_to_the_written_words_that_they_read(language: str | None) -> None:
    text = "Der Preis steigt um 25 % auf 3,50 € ab morgen."
    form = TextForm(language, is_chosen=True)
    read = form.part_reader(text)
    written, said = find_written(text), keys(form.transcript(text))

    groups = [part for group in find_groups(text, written, said) for part in divide(group, text, written, said, read)]

    pairs = [
        (
            text[written[each.first].start : written[each.stop - 1].stop],
            " ".join(said[each.first_spoken : each.stop_spoken]),
        )
        for each in groups
    ]
    assert pairs == [
        *(("Der", "der"), ("Preis", "preis"), ("steigt", "steigt"), ("um", "um")),
        *(("25 %", "fünfundzwanzig prozent"), ("auf", "auf"), ("3,50 €", "drei euro fünfzig")),
        *(("ab", "ab"), ("morgen", "morgen")),
    ]
