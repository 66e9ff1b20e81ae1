"""The full stop of an abbreviation ends a sentence only where a careful reader would end one."""

from __future__ import annotations

import re

import pytest

from s1_mini.text import spoken
from s1_mini.text.split import sentence_spans

# Sentences that end with an abbreviation, an initialism, or a word that is written like an abbreviation.
ENDS = {
    "times": [
        "We left at 6 p.m.",
        "It opens at 9 a.m.",
        "The show is at 8:30 P.M.",
        "It is 5 PM.",
        "It closes at 10 pm.",
    ],
    "places": ["She lives in the U.S.", "They moved to the U.K.", "He works in Washington, D.C.", "I grew up in L.A."],
    "initialisms": [
        "She is the CEO.",
        "I watched the BBC.",
        "They joined the EU.",
        "He works for the F.B.I.",
        "I own a TV.",
    ],
    "companies": ["He works for Acme Inc.", "She sued Smith & Co.", "They bought Dell Corp.", "I work at Foo Ltd."],
    "persons": ["I met Martin Luther King Jr.", "She has a Ph.D.", "He is an M.D.", "She earned her B.A."],
    "days": ["We met on Mon.", "It opens on Tues.", "Open Mon.–Fri.", "It is due Sat.", "We left this Sun."],
    "months": ["We met in Jan.", "It ended in Sept.", "School starts in Aug.", "We moved in Dec."],
    "units": [
        "He is 6 ft.",
        "It weighs 5 lb.",
        "Add 3 oz.",
        "It took 3 hr.",
        "Wait 5 min.",
        "It is 11 in.",
        "We ran 5 km.",
    ],
    "streets": ["He lives on Elm St.", "We walked down Fifth Ave.", "Turn onto Sunset Blvd.", "It is in Boston, Mass."],
    "others": [
        "We bought pears, etc.",
        "It is by Smith et al.",
        "She works in the dept.",
        "I prefer Plan B.",
        "Take vitamin C.",
    ],
    "words": [
        *(
            "Just a min.",
            "He is in the co.",
            "Wait a sec.",
            "She ate a fig.",
            "We love art.",
            "He fell ill.",
            "He dug up ore.",
        ),
        *("We went to mass.", "Do the wash.", "She is my gal.", "He came in.", "The cat sat.", "We sat in the sun."),
        *("Turn it to the max.", "The answer is no.", "She is a temp.", "We drove far in mar.", "Open the app."),
    ],
}
NEXT = {
    "word": " The rest is easy.",
    "pronoun": " He was late.",
    "name": " Tom was late.",
    "number": " 5 people came.",
    "quotation": ' "Hello," she said.',
    "question": " Why did they go?",
    "request": " Ask her.",
    "paragraph": "\n\nThen it rained.",
}
# One sentence each: the full stops within belong to abbreviations only.
WITHIN = """
At 6 p.m. we left.|He came at 5 p.m. on Monday.|Come at 3 p.m. Monday.|It is at 8 p.m. Eastern time.
the 3 p.m. train|The U.S. economy grew.|The U.S. Senate voted.|The U.S. Supreme Court ruled.
The U.N. Security Council met.|U.S. Steel rose.|Washington, D.C. is hot.|Acme Inc. was sold.
Apple Inc. CEO Tim Cook spoke.|Smith & Co. opened.|She has a Ph.D. in art.|Martin Luther King Jr. Day is in winter.
On Mon. we met.|On Fri. Jan. 5 we met.|In Jan. we met.|Jan. 5, 2020 was cold.|He is 6 ft. tall.
He is 5 ft. 11 in. tall.|It took 1 hr. 20 min. to bake.|Add 2 tbsp. sugar.|It weighs 3 lb. 4 oz. now.
3 ft. 6 in. wide|Hold for 30 sec. 5 times.|It took 2 hrs. 5 min. in all.|Add 1 tbsp. Dijon mustard.|5 lbs. of meat
She lives on Elm St. in town.|Apples, pears, etc. are good.|Smith et al. (2020) agree.|Mr. Smith met Dr. Who.
J. R. R. Tolkien wrote it.|George W. Bush spoke.|C.S. Lewis was here.|Samuel L. Jackson came.
Fruit, e.g. Apples, is good.|It was Lakers vs. Celtics.|See No. 5 and fig. 3.|See p. 5 and vol. 2.|Dept. of Energy
St. John and Mt. Fuji|Rev. Dr. King|At 5 a.m. Mr. Smith went out.|By 5 p.m. (the deadline) we left.
He is no. 1 in the world.|Art. 5 sec. 3 of the law|"We left at 6 p.m." he said.
We stayed in the U.S. (United States).|ca. 1900|Let us meet Sun. afternoon.
Last Sat. I slept.|In Jan. I'll move.|During Oct. Mr. Lee left.|Was it J. K. Rowling?|We met J. Smith.
School Dist. 5 voted.|Tel. +1 212 555 0147|A 2 bdrm. flat|2 blks. to the park
J.D. Vance won.|Mr. M.A. Lee spoke.|The non-U.S. sales rose.|A 10-yr. Treasury note
"""


@pytest.mark.parametrize("kind", ENDS)
def test_a_sentence_ends_at_an_abbreviation_before_another_sentence(kind: str) -> None:
    wrong = []
    for sentence in ENDS[kind]:
        said = spoken(sentence)
        for following in NEXT.values():
            text = sentence + following
            both = spoken(text)
            is_right = both.startswith(said) and said.endswith(".") and len(sentence_spans(both)) == 2
            if not (is_right and sentence_spans(text)[0] == (0, len(sentence))):
                wrong.append((text, both))

    assert not wrong


def test_no_sentence_ends_at_an_abbreviation_within_one() -> None:
    texts = [text for line in WITHIN.split("\n") for text in line.split("|") if text]

    wrong = [
        (text, said)
        for text in texts
        if re.search(r"\.[\"')]?\s", said := spoken(text)) or len(sentence_spans(text)) > 1
    ]

    assert not wrong


@pytest.mark.parametrize(
    ("written", "said"),
    [
        # Abbreviations whose letters are also words.
        ("Just a min. please", "Just a minute please"),
        ("It costs a min. of 5 points.", "It costs a minimum of five points."),
        (
            "Dr. and Mrs. Lee left in 80 A.D. Visitors stayed.",
            "Doctor and Missus Lee left in eighty A D. Visitors stayed.",
        ),
        ("The min. wage and the max. speed", "The minimum wage and the maximum speed"),
        ("He is in the co. now.", "He is in the co. now."),
        ("Jane and Co. is here.", "Jane and Company is here."),
        ("The answer is no. 3 days later he left.", "The answer is no. three days later he left."),
        ("Bus no. 12 goes there.", "Bus number twelve goes there."),
        ("We went to the app. 5 stars!", "We went to the app. five stars!"),
        ("The room temp. is high.", "The room temperature is high."),
        ("I met Jan. She is nice.", "I met Jan. She is nice."),
        ("Hello, Jan. How are you?", "Hello, Jan. How are you?"),
        ("He moved to Elm St. Nobody knew.", "He moved to Elm Street. Nobody knew."),
        ("The Sun. It is hot.", "The Sun. It is hot."),
        ("The cat sat. Mon. came.", "The cat sat. Monday came."),
        ("He lives in Gary, Ind. now.", "He lives in Gary, Indiana now."),
        ("Hello, Pa. How are you?", "Hello, Pa. How are you?"),
        # Words of time make Sat. and Sun. days.
        ("We stayed until Sat. It rained.", "We stayed until Saturday. It rained."),
        ("On Sun. morning, or Sat. at 5 p.m.", "On Sunday morning, or Saturday at five P M."),
        ("Open Mon. to Sat., closed Sun.", "Open Monday to Saturday, closed Sunday."),
    ],
)
def test_abbreviations_that_are_also_words_are_read_by_their_neighbours(written: str, said: str) -> None:
    assert spoken(written) == said
