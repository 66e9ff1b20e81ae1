import json
import lzma
import multiprocessing
import sys
import threading
import time
from collections import Counter
from pathlib import Path

import numpy as np
import pytest

if str(Path(__file__).parents[2]) not in sys.path:  # training/ is not installed
    sys.path.insert(0, str(Path(__file__).parents[2]))
pytest.importorskip("soxr")
speech = pytest.importorskip("training.speech")


def _flite_is_here() -> bool:
    try:
        speech._flite()
    except speech.SpeechError:
        return False
    return True


flite = pytest.mark.skipif(not _flite_is_here(), reason="libflite1, the teacher, is not installed")


def _median_f0(samples: np.ndarray) -> float:
    found = []
    for start in range(0, len(samples) - 1024, 512):
        frame = samples[start : start + 1024].astype(float)
        if np.sqrt(np.mean(frame**2)) > 1500:
            spectrum = np.abs(np.fft.rfft(frame * np.hanning(1024), 4096)) ** 2
            correlation = np.fft.irfft(spectrum)[40:250]  # 64 to 400 Hz
            found.append(16_000 / (40 + int(np.argmax(correlation))))
    return float(np.median(found))


def test_a_speaker_is_the_same_for_ever():
    assert speech.speaker(7) == speech.speaker(7)
    assert len({speech.speaker(i) for i in range(1000)}) > 600


def test_a_fair_share_of_speakers_is_the_teacher_as_it_is():
    speakers = [speech.speaker(i) for i in range(2000)]

    plain = sum(one == speech.Speaker(one.voice) for one in speakers)
    assert 0.25 < plain / len(speakers) < 0.35
    assert min(Counter(one.voice for one in speakers).values()) > 200


def test_no_training_speaker_is_like_a_held_out_one():
    bands = {teacher.name: teacher.held_out for teacher in speech.TEACHERS}

    held_out = speech.held_out_speakers()

    assert len(set(held_out)) == 16
    assert all(bands[one.voice][0] < one.formants < bands[one.voice][1] for one in held_out)
    for one in map(speech.speaker, range(5000)):
        assert not bands[one.voice][0] <= one.formants <= bands[one.voice][1]


@flite
@pytest.mark.parametrize("voice", [teacher.name for teacher in speech.TEACHERS])
def test_pitch_moves_without_the_duration(voice):
    text = "We have never been away so long."

    plain = speech.synthesise(text, speech.Speaker(voice))
    raised = speech.synthesise(text, speech.Speaker(voice, pitch=1.25))

    assert _median_f0(raised) / _median_f0(plain) == pytest.approx(1.25, rel=0.08)
    assert len(raised) == pytest.approx(len(plain), rel=0.05)


@flite
def test_formants_move_without_the_pitch_and_the_duration():
    text = "We have never been away so long."

    plain = speech.synthesise(text, speech.Speaker("rms"))
    moved = speech.synthesise(text, speech.Speaker("rms", formants=1.08))

    assert _median_f0(moved) / _median_f0(plain) == pytest.approx(1, rel=0.04)
    assert len(moved) == pytest.approx(len(plain), rel=0.05)


@flite
def test_speech_is_at_one_level_between_short_silences_and_always_the_same():
    who = speech.held_out_speakers()[0]

    samples = speech.synthesise("It costs $3.50, or €7.", who)

    assert samples.dtype == np.int16
    assert 3000 < np.abs(samples.astype(int)).max() < 32767
    quiet = int(speech.LEADING_S * speech.SAMPLE_RATE)
    assert np.abs(samples[: quiet - 200]).max() < 700
    assert np.abs(samples[-2 * quiet + 200 :]).max() < 700
    np.testing.assert_array_equal(samples, speech.synthesise("It costs $3.50, or €7.", who))


@flite
def test_shards_are_the_same_however_they_are_made(tmp_path):
    texts_file = _tiny_corpora(tmp_path)
    plan = speech.Plan(texts_file, tmp_path / "one", num_workers=1, shard_size=9, max_utterances=12)

    num_made = speech.make(plan)
    again = speech.make(plan)

    assert (num_made, again) == (12, 0)
    assert sorted(path.name for path in plan.output.iterdir()) == ["shard_00000.npz", "shard_00001.npz"]
    spoken = [one for path in sorted(plan.output.iterdir()) for one in speech.read_shard(path)]
    assert [one.speaker for one in spoken] == [0] * 8 + [1] * 4
    for one in spoken[:3]:
        np.testing.assert_array_equal(one.samples, speech.synthesise(one.text, speech.speaker(one.speaker)))


@flite
def test_a_worker_that_dies_is_replaced(tmp_path, capsys):
    plan = speech.Plan(_tiny_corpora(tmp_path), tmp_path / "out", num_workers=1, shard_size=40, max_utterances=40)
    killer = threading.Thread(target=_kill_first_child)

    killer.start()
    num_made = speech.make(plan)
    killer.join()

    assert num_made == 40
    assert len(speech.read_shard(plan.shard(0))) == 40
    assert "started again" in capsys.readouterr().out


def _kill_first_child() -> None:
    while not (children := multiprocessing.active_children()):
        time.sleep(0.01)
    children[0].kill()


def _tiny_corpora(folder: Path) -> Path:
    content = {
        "sentences": ["We saw it.", "They are here.", "Come along."],
        "common": ["stone", "tree"],
        "words": ["run", "sea"],
    }
    path = folder / "texts.xz"
    path.write_bytes(lzma.compress(json.dumps(content).encode()))
    return path
