"""Sentences with gaps for words and figures, and how they are filled."""

import re

from training.texts.corpora import Corpora
from training.texts.figures import FIGURES
from training.texts.lists import Random, one

PLURALS = ["apples", "books", "chairs", "tickets", "eggs", "nails", "candles", "boxes", "cups", "keys", "coins"]
PLURALS += ["letters", "pencils", "potatoes", "stamps", "shirts", "batteries", "cables", "screws", "lamps", "stones"]

LIST_TEMPLATES = [
    "*", "we need *", "{first} bought *", "please bring *", "I packed *", "they found * {where}", "do you want *",
    "the {person} asked for *", "there were * {where}", "remember *", "* are {adjective}",
]  # fmt: skip

TEMPLATES = {
    "statement": [
        "the {adjective} {person} {past} the {noun} {where}",
        "{first} {adverb} {past} a {adjective} {noun}",
        "{when} the {person} {past} my {noun}",
        "there is a {adjective} {noun} {where}",
        "I {past} the {noun} {when}",
        "we {past} a {noun} and a {adjective} {noun} {where}",
        "the {noun} was {adjective} and the {noun} was {adjective}",
        "{first} says that the {noun} is too {adjective}",
        "nobody {past} the {adjective} {noun} {when}",
        "my {person} never {past} a {noun} {where}",
        "the {person} who {past} the {noun} is {adjective}",
        "{word} is a word that the {person} likes",
        "it was {adjective} {where} {when}",
        "the {word} {noun} is {where}",
        "a {person} from {place} {past} our {noun}",
        "they wanted to {verb} the {noun}, but it was {adjective}",
        "if you {verb} the {noun}, the {person} will {verb} it too",
        "{first} would rather {verb} a {noun} than {verb} a {noun}",
        "her {noun} is more {adjective} than his {noun}",
        "the {noun} {where} belongs to {title} {last}",
    ],
    "question": [
        "did the {person} {verb} the {noun} {when}?",
        "who {past} my {adjective} {noun}?",
        "where did {first} {verb} the {noun}?",
        "why is the {noun} so {adjective}?",
        "can you {verb} this {noun} for me?",
        "is there a {adjective} {noun} {where}?",
        "have you ever been to {place}?",
        "how do I {verb} a {noun}?",
        "what does {word} mean?",
        "when will {first} {last} {verb} the {noun}?",
        "would you like a {noun} or a {noun}?",
        "could you please spell {word}?",
        "which {noun} do you {verb}?",
    ],
    "command": [
        "please {verb} the {noun} {where}",
        "{verb} the {adjective} {noun} and {verb} the {noun}!",
        "do not {verb} that {noun}!",
        "{first}, {verb} your {noun}!",
        "let us {verb} the {noun} {when}",
        "{adverb} {verb} the {noun}",
        "never {verb} a {adjective} {noun}",
        "tell {first} to {verb} the {noun} {when}",
        "put the {noun} {where}, please",
    ],
    "talk": [
        'the {person} said, "I {past} your {noun}."',
        '"{verb} the {noun}!" {first} shouted',
        '"Is it {adjective}?" asked the {person}',
        "well, I think {first} is {adverb} {adjective}",
        "oh, it's only a {noun}",
        "I don't know, {first}, I haven't seen the {noun}",
        "that's the {adjective} {noun} we've been looking for",
        "sorry, {first}, I can't {verb} the {noun} {when}",
        "good morning, {title} {last}, your {noun} is ready",
        "hello, this is {first} {last} from {place}",
        "hi {first}, it's {first}, please call me back {when}",
        "you'll never guess what {first} {past} {when}",
        "thank you for the {adjective} {noun}",
        "what a {adjective} {noun}!",
        "it's {adjective}, isn't it?",
        "let's meet {where} {when}",
        "I'd like to {verb} a {noun}, please",
        "happy birthday, {first}!",
    ],
    "answer": [
        "yes, {first}",
        "no, {first}",
        "yes, the {noun} is {where}",
        "no, the {noun} is {adjective}",
        "yes, {when}",
        "no, not {when}",
        "yes, {title} {last}",
        "no, {title} {last}",
        "yes, I {past} it {when}",
        "no, we never {past} the {noun}",
        "yes, of course you can {verb} it",
        "no, thank you, {first}",
        "yes and no",
        "well, yes and no",
        "yes, yes, the {noun}",
        "no, no, the {adjective} one",
        "oh no, the {noun}!",
        "oh yes, {first} will {verb} it",
        "{first} said yes",
        "{first} said no",
        "did {first} say yes or no?",
        "is that a yes or a no?",
        "the {person} said yes, and the {person} said no",
        "say yes, or press {small}",
        "hello, {first}",
        "hello, is {first} there?",
        "goodbye, {first}, see you {when}",
        "stop, {first}!",
        "wait, {first}, the {noun}!",
        "really, {first}?",
        "maybe {when}",
        "why not {when}?",
        "sorry, {first}, not {when}",
        "thanks, {first}, that is {adverb} {adjective}",
    ],
    "names": [
        "{first} {last} was born in {place}",
        "{title} {last} lives in {place} with {first} and {first}",
        "{first}, {first} and {first} are moving to {place}",
        "we flew from {place} to {place} {when}",
        "have you met {title} {last} from {place}?",
        "{first} {last} works for {acronym} in {place}",
        "please ask for {first} {last} {where}",
        "{title} {last} teaches at the university of {place}",
        "the {last} family {past} a {noun} in {place}",
        "the train from {place} to {place} is {adjective}",
    ],
    "service": [
        "your {thing} has been {done}",
        "your {thing} was {done} {when}",
        "we are sorry, but your {thing} could not be {done}",
        "would you like to have your {thing} {done}?",
        "please confirm your {thing}",
        "thank you for calling, how can I help you with your {thing}?",
        "please hold while I check your {thing}",
        "I can see that your {thing} and your {thing} have been {done}",
        "to change your {thing}, say yes or press one",
        "is there anything else I can help you with, {first}?",
        "your {thing} will be {done} {when}",
        "we will send you an e-mail as soon as your {thing} is {done}",
        "{title} {last}, your {thing} is waiting {where}",
        "our office in {place} is closed {when}",
    ],
    "technical": [
        "the {technical} {fails}",
        "the {technical} of the {technical} {fails}",
        "check the {technical} before you restart the {technical}",
        "every {technical} needs its own {technical}",
        "{when} the {adjective} {technical} {fails}",
        "why has the {technical} {fails}?",
        "connect the {technical} to the {technical}",
        "the new {technical} is {adjective}, e.g. for a {technical}",
        "the {technical} sends a {technical} to the {technical}",
        "{acronym} and {acronym} are {adjective}",
        "how large is the {technical} of {acronym}?",
        "open the {technical}, select the {technical}, and wait until the {technical} {fails}",
    ],
}
TEMPLATE_ROOMS = list(TEMPLATES)

NUMBER_TEMPLATES = [
    "{integer}",
    "{integer} {unit}",
    "the answer is {integer}",
    "I counted {integer} {unit}",
    "it is {decimal} {unit} long",
    "there are {integer} {unit} in this {noun}",
    "{percent} of the {unit} are {adjective}",
    "only {percent} agreed, and {percent} said no",
    "the {ordinal} {noun} is {adjective}",
    "{first} finished in {ordinal} place",
    "turn to page {small}",
    "my room number is {small}",
    "call extension {small}",
    "it happened in {year}",
    "{first} {last} was born in {year}",
    "between {year} and {year}, {first} lived in {place}",
    "the {noun} was built in {year}",
    "{year} was a {adjective} year",
    "the meeting is on {date}",
    "{date}",
    "your {thing} was {done} on {date}",
    "on {date}, the {person} {past} the {noun}",
    "see you at {clock}",
    "{clock}",
    "the train to {place} leaves at {clock}",
    "we open at {clock} and close at {clock}",
    "it is {clock} in {place}",
    "your {thing} is at {clock} on {date}",
    "it costs {money}",
    "the {noun} costs {money}",
    "{money}",
    "that will be {money}, please",
    "the price rose from {money} to {money}",
    "{first} paid {money} for a {adjective} {noun}",
    "was it {money} or {money}?",
    "the temperature is {signed} degrees",
    "version {decimal} of the {technical} {fails}",
    "{small} plus {small} is {small}",
    "add {integer} and {integer}",
    "the code is {code}",
    "dial {phone}",
    "flight {small} to {place} departs at {clock}",
    "chapter {small}",
    "who has {integer} {unit}?",
    "{integer}, {integer}, {integer}",
    "it is {decimal} {unit} to {place}",
    "{first} lives at {small} {last} St. in {place}",
    "the {technical} uses {decimal} {unit}",
    "about {big} people live in {place}",
    "we sold {big} copies {when}",
    "is it the {ordinal} or the {ordinal}?",
    "your {thing} number {small} has been {done}",
    "my {person} is {age} years old",
    "the score was {age} to {age}",
]


def filled(rng: Random, template: str, corpora: Corpora) -> str:
    """Fill the gaps of a template, ``{noun}`` and the like."""

    def fill(match: re.Match[str]) -> str:
        name = match[1]
        if name == "word":
            return rng.choice(corpora.words if rng.random() < 0.5 else corpora.common)
        if name in FIGURES:
            return FIGURES[name](rng)
        return one(rng, name)

    text = re.sub(r"\{(\w+)\}", fill, template)
    return re.sub(r"\b([Aa]) (?=[aeiou])(?!one\b|uni|use|eu)", r"\1n ", text)


def sentence_of(text: str) -> str:
    """Begin with a capital and end with a mark."""
    start = 1 if text[0] == '"' else 0
    text = text[:start] + text[start : start + 1].upper() + text[start + 1 :]
    text = re.sub(r'"([a-z])', lambda match: f'"{match[1].upper()}', text)
    return text if text[-1] in '.!?"' else text + "."
