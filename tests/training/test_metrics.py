"""What a voice is judged by can itself be relied upon. Needs requirements-evaluate.txt; real speech needs libflite."""

import json
import sys
from concurrent.futures import ThreadPoolExecutor
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

if str(Path(__file__).parents[2]) not in sys.path:  # training/ is not installed
    sys.path.insert(0, str(Path(__file__).parents[2]))

from training import evaluate
from training.metrics.lengths import is_runaway, is_truncated, length_ratio
from training.metrics.voice import envelope_distance, median_f0, voice_print
from training.metrics.words import compare, edit_distance, normalise, places

SENTENCES = ("We went for a long walk after dinner.", "The dog ran across the street.")
needs_recogniser = pytest.mark.skipif(
    find_spec("pocketsphinx") is None,
    reason="pocketsphinx is missing: pip install -r requirements-evaluate.txt",
)


@pytest.fixture(scope="module")
def speech():
    """The teacher's module, if flite is there."""
    try:
        module, _ = evaluate._teacher()
    except ModuleNotFoundError as error:
        pytest.skip(f"the teacher's modules cannot be imported: {error}")
    try:
        module.synthesise("Hello.", module.Speaker("rms"))
    except module.SpeechError as error:
        pytest.skip(f"flite is missing: {error}")
    return module


@pytest.fixture(scope="module")
def wave(speech):
    return speech.synthesise(SENTENCES[0], speech.Speaker("rms"))


def tone(f0_hz, seconds=1.0):
    """A buzz of ten harmonics, int16 at 16 kHz."""
    time = np.arange(int(16_000 * seconds)) / 16_000
    sound = sum(np.sin(2 * np.pi * k * f0_hz * time) / k for k in range(1, 11))
    return np.round(sound * 5000).astype(np.int16)


# ---- words ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "hypothesis"),
    [
        ("It was 1984.", "it was nineteen eighty four"),
        ("It was 1984.", "it was one thousand nine hundred eighty four"),
        ("It was 1905.", "it was nineteen oh five"),
        ("It costs $3.50.", "it costs three dollars fifty cents"),
        ("It costs $3.50.", "it costs three dollars and fifty cents"),
        ("It costs $1.", "it costs one dollar"),
        ("At 10:45 or 9:05.", "at ten forty five or nine oh five"),
        ("At 8 am.", "at eight a. m."),
        ("May 21, the 3rd.", "may twenty first the third"),
        ("12,500 of 2.5 are 75%.", "twelve thousand five hundred of two point five are seventy five percent"),
        ("Room 608 of the BBC.", "room six oh eight of the b. b. c."),
        ("Dr. Who's here, isn't he?", "doctor whos here isn't he"),
        ("The twenty-first café; goodbye!", "the twenty first cafe good bye"),
    ],
)
def test_every_accepted_reading_is_free_of_errors(text, hypothesis):
    assert compare(text, hypothesis).word_errors == 0


@pytest.mark.parametrize(
    ("hypothesis", "errors"),
    [("the cat sat", 0), ("the bat sat", 1), ("the sat", 1), ("the cat sat down", 1), ("", 3), ("a b c d e", 5)],
)
def test_a_substituted_a_missing_and_an_added_word_are_one_error_each(hypothesis, errors):
    comparison = compare("The cat sat.", hypothesis)

    assert (comparison.word_errors, comparison.words) == (errors, 3)


def test_the_wrong_number_is_an_error_in_all_its_readings():
    comparison = compare("It was 1984.", "it was nineteen eighty five")

    assert (comparison.word_errors, comparison.words) == (1, 5)
    assert comparison.character_errors == edit_distance("four", "five")


@given(st.integers(0, 10**9 - 1), st.integers(0, 23), st.integers(0, 59), st.integers(0, 99))
def test_all_numbers_times_and_sums_can_be_read(number, hour, minute, cents):
    for text in (str(number), f"{number:,}", f"{hour}:{minute:02d}", f"${number}.{cents:02d}"):
        for readings in places(text):
            for reading in readings:
                assert compare(text, " ".join(reading)).word_errors == 0
                assert normalise(" ".join(reading)) == reading


@given(st.text("abc", max_size=8), st.text("abc", max_size=8))
def test_the_edit_distance_is_a_distance(one, other):
    distance = edit_distance(one, other)

    assert distance == edit_distance(other, one)
    assert (distance == 0) == (one == other)
    assert abs(len(one) - len(other)) <= distance <= max(len(one), len(other))


# ---- recogniser and quality -----------------------------------------------------------------------------------------


@needs_recogniser
def test_what_is_heard_does_not_depend_on_what_was_heard_before(speech, wave):
    from training.metrics.recognition import word_errors

    first = word_errors(SENTENCES[0], wave)
    word_errors("Come in.", speech.synthesise("Come in.", speech.Speaker("kal16")) // 8)

    assert word_errors(SENTENCES[0], wave) == first
    assert first[0] <= 1
    assert first[1] == 8


@needs_recogniser
def test_silence_and_nothing_are_heard_as_no_words():
    from training.metrics.recognition import word_errors

    for nothing in (np.zeros(0, np.int16), np.zeros(8_000, np.float32)):
        assert word_errors("The cat sat.", nothing) == (3, 3, "")


def test_noise_is_rated_below_clean_speech(wave):
    pytest.importorskip("onnxruntime", reason="runs DNSMOS: pip install -r requirements-evaluate.txt")
    pytest.importorskip("speechmos", reason="holds the DNSMOS network: pip install -r requirements-evaluate.txt")
    from training.metrics.quality import overall_quality

    noise = np.random.default_rng(0).normal(0, 800, len(wave))
    clean, noisy = overall_quality(wave), overall_quality((wave + noise) / 32768)

    assert 1 < noisy < clean - 0.5 < 5
    assert overall_quality(wave) == clean
    assert np.isnan(overall_quality(wave[:0]))


# ---- voice ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("f0_hz", [70.0, 123.4, 200.0, 333.0])
def test_the_pitch_of_a_buzz_is_found_within_half_a_percent(f0_hz):
    assert median_f0(tone(f0_hz)) == pytest.approx(f0_hz, rel=0.005)


@pytest.mark.parametrize("seconds", [0.0, 0.01, 1.0])
def test_silence_has_no_voice(seconds):
    voice = voice_print(np.zeros(int(16_000 * seconds), np.int16))

    assert np.isnan(voice.median_f0_hz)
    assert np.isnan(envelope_distance(voice, voice))


def test_noise_is_unvoiced_and_loudness_does_not_matter(wave):
    quiet = voice_print(wave // 4)

    assert np.isnan(median_f0(np.random.default_rng(0).normal(0, 0.1, 16_000)))
    assert quiet.median_f0_hz == pytest.approx(median_f0(wave), rel=0.01)
    assert envelope_distance(quiet, voice_print(wave)) < 0.2


def test_a_speaker_resembles_himself_in_another_text_more_than_other_speakers(speech):
    names = ("slt", "rms", "awb")
    voices = {
        name: [voice_print(speech.synthesise(text, speech.Speaker(name))) for text in SENTENCES] for name in names
    }

    for name in names:
        own = envelope_distance(*voices[name])
        others = [
            envelope_distance(voices[name][0], voice) for other in names if other != name for voice in voices[other]
        ]
        assert own < min(others)
        assert voices[name][0].median_f0_hz == pytest.approx(voices[name][1].median_f0_hz, rel=0.1)


# ---- lengths, rows and gates ----------------------------------------------------------------------------------------


def test_a_recording_runs_away_by_its_length_or_by_its_limit():
    assert is_runaway(length_ratio(3.1, 2.0), stopped=True)
    assert is_runaway(1.0, stopped=False)
    assert not is_runaway(1.5, stopped=True)
    assert is_truncated(0.66)
    assert not is_truncated(0.67)


@needs_recogniser
def test_a_codec_that_changes_nothing_passes_its_gate_and_one_that_is_silent_does_not(speech):
    speakers = [speech.Speaker("rms"), speech.Speaker("awb")]
    with ThreadPoolExecutor(1) as pool:
        same = evaluate.codec_gate(lambda waves: [w / np.float32(32768) for w in waves], SENTENCES, speakers, pool=pool)
        silent = evaluate.codec_gate(lambda waves: [0 * w / 32768 for w in waves], ["Come in."], speakers, pool=pool)

    assert same.ratio == 1
    assert same.teacher_wer == same.codec_wer < 0.3
    assert silent.codec_wer == 1


def row(name, **changes):
    facts = {
        "wer": 0.1, "cer": 0.05, "dnsmos": 3.0, "length_ratio": 1.0, "runaway": 0.0, "truncated": 0.0,
        "f0_within_10": 0.96, "f0_within_15": 1.0, "envelope_own_db": 2.0, "envelope_other_db": 5.0,
        "wer_by_kind": {}, "failed": 0,
    }  # fmt: skip
    return evaluate.Row(name, 20, **(facts | changes))


def test_the_worse_of_two_ways_to_speak_decides():
    rows = {name: row(name) for name in ("teacher", "codec", "clone")} | {"model": row("model", wer=0.3)}
    gates = {gate.name: gate for gate in evaluate.make_gates(rows, None, 12.0)}

    assert not gates["model WER"].passed
    assert gates["model WER / teacher WER"].value == pytest.approx(3)
    assert gates["codec WER / teacher WER"].reaches_aim
    assert gates["clones with F0 within 10 %"].reaches_aim


def test_a_figure_that_could_not_be_measured_passes_no_gate():
    assert not evaluate.Gate("x", float("nan"), 1, 1).passed
    assert not evaluate.Gate("x", float("nan"), 1, 1, at_most=False).passed


def test_the_json_line_is_one_line_of_strict_json():
    rows = {"teacher": row("teacher", dnsmos=float("nan"))}
    line = evaluate.json_line({"seed": 0}, rows, None, [evaluate.Gate("x", float("inf"), 1, 1)])

    report = json.loads(line, parse_constant=lambda name: pytest.fail(f"{name} is no JSON"))
    assert "\n" not in line
    assert report["rows"]["teacher"]["dnsmos"] is None
    assert report["gates"][0]["passed"] is False


def test_the_table_has_a_line_for_every_row():
    lines = evaluate.table({name: row(name) for name in evaluate.NAMES}).splitlines()

    assert len({len(line) for line in lines}) == 1
    assert [line.split("  ")[0].strip() for line in lines[1:]] == list(evaluate.NAMES.values())


def test_a_recording_that_failed_counts_as_truncated_and_unintelligible():
    case = evaluate.Case("plain", "Yes.", speaker=None, reference_text="", seed=0)
    silence = voice_print(np.zeros(1600, np.int16))
    heard = [evaluate.Heard(compare("Yes.", ""), "", float("nan"), silence)]
    failed = [evaluate.Spoken(np.zeros(0, np.int16), error="GenerationError: …")]
    teacher = [evaluate.Spoken(np.zeros(1600, np.int16))]

    made = evaluate.make_row("model", [case], spoken=failed, heard=heard, teacher=teacher, references=None)

    assert (made.wer, made.truncated, made.runaway, made.failed) == (1, 1, 0, 1)


def test_fewer_sentences_are_a_part_of_more_and_the_seed_decides(speech):
    some, more = evaluate.choose_cases(20, seed=3), evaluate.choose_cases(60, seed=3)

    assert more[:20] == some
    assert {case.kind for case in some} == {"plain", "numbers", "names", "short", "long"}
    assert evaluate.choose_cases(20, seed=4) != some


def test_plots_are_drawn_alike_every_time(tmp_path):
    pytest.importorskip("matplotlib", reason="draws the plots: pip install -r requirements-evaluate.txt")
    from training.metrics.plots import draw

    def paint(folder):
        folder.mkdir()
        rates, ratios = {"teacher": (0.1, 0.05), "codec": (0.2, 0.1)}, {"model": [0.9, 1.0, 3.0]}
        return draw(folder, error_rates=rates, f0_hz=[(100, 104), (180, 170)], length_ratios=ratios)

    once, again = paint(tmp_path / "a"), paint(tmp_path / "b")

    assert [path.name for path in once] == ["errors.png", "pitch.png", "lengths.png"]
    assert all(a.read_bytes() == b.read_bytes() for a, b in zip(once, again, strict=True))
    assert sum(path.stat().st_size for path in once) < 100_000
