"""`s1-mini align` finds the attention head for word times, names it in the config, and refuses if there is none."""

from __future__ import annotations

import csv
import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch

from s1_mini import EngineConfig, ProductionTTSEngine
from s1_mini.alignment.head import AlignmentHead
from s1_mini.checkpoint.align import SENTENCES, Recorder, calibrate
from s1_mini.families.cascade.family import Cascade
from s1_mini.runtime.finishing import Finishing, PartFinish
from s1_mini.runtime.loader import load
from s1_mini.runtime.synthesizer import Synthesizer
from s1_mini.types import SamplingParams, TTSRequest, Voice
from s1_mini.voices.library import write_voice
from s1_mini.weights.directory import DEFAULT_MODEL, read_json
from tests.cli.conftest import Call
from tests.families import qwen3_room
from tests.families.mel_room import follow_text, written
from tests.families.qwen3_room import LETTERS, START

TEXTS = ("--text", SENTENCES[0], "--text", SENTENCES[1])
PLAIN = {"device": "cpu", "compile": "false", "max_batch_size": 1}


@pytest.fixture(scope="module")
def following(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, float]:
    """A SpeechT5 checkpoint whose head 1 of layer 1 follows the text, and its frames for each token."""
    directory = written(tmp_path_factory.mktemp("align") / "checkpoint", seed=5)
    return directory, 2 * follow_text(directory, layer=1, head=1)


@pytest.fixture
def checkpoint(following: tuple[Path, float], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy that speaks as long as its head needs for the text."""
    monkeypatch.setenv("S1_MINI_MIN_LENGTH_RATIO", str(following[1]))
    return Path(shutil.copytree(following[0], tmp_path / "checkpoint"))


def test_the_head_is_written_and_converted_and_word_times_work_with_it(
    call: Call, checkpoint: Path, tmp_path: Path
) -> None:
    before = read_json(checkpoint / "config.json")

    result = call("align", "--checkpoint", checkpoint, *TEXTS, "--device", "cpu", "--write")

    assert result.code == 0, result.err
    config = read_json(checkpoint / "config.json")
    assert (config["alignment"]["layer"], config["alignment"]["head"]) == (1, 1)
    assert {**config, "alignment": None} == {**before, "alignment": None}
    assert json.loads("{" + result.out.strip().splitlines()[-1] + "}") == {"alignment": config["alignment"]}
    assert "sentence 2 of 2" in result.err
    assert call("convert", "--checkpoint", checkpoint, "-o", tmp_path / "compact").code == 0
    assert read_json(tmp_path / "compact" / "config.json")["alignment"] == config["alignment"]
    with ProductionTTSEngine(EngineConfig(checkpoint_path=checkpoint, device="cpu")) as engine:
        words = engine.generate("One, two, three.", word_times=True).words
    assert [word.text for word in words] == ["One", "two", "three"]


def test_random_weights_have_no_head(call: Call, tiny: Path, tmp_path: Path) -> None:
    random = Path(shutil.copytree(tiny, tmp_path / "random"))
    before = (random / "config.json").read_bytes()

    result = call("align", "--checkpoint", random, "--device", "cpu", "--write")

    assert result.code == 1
    assert "no attention head of" in result.err
    assert "cannot report word times" in result.err
    assert "too small: share" in result.out
    assert "sentence 3" not in result.err  # two are enough to see it
    assert (random / "config.json").read_bytes() == before


def test_a_family_without_such_heads_says_so(call: Call, tmp_path: Path) -> None:
    Cascade().write_random(tmp_path / "bark", size="tiny", form="compact", seed=0)

    result = call("align", "--checkpoint", tmp_path / "bark", "--device", "cpu")

    assert result.code == 1
    assert "Bark has no attention head that could follow the text" in result.err


@pytest.mark.parametrize("layout", ["step"])
def test_a_head_of_qwen3_is_found_in_each_layout_and_converted(
    call: Call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, layout: str
) -> None:
    monkeypatch.setenv("S1_MINI_TEXT_LAYOUT", layout)
    directory = qwen3_room.follow_text(qwen3_room.written(tmp_path / "custom", "custom_voice"))

    result = call("align", "--checkpoint", directory, "--text", LETTERS, "--device", "cpu", "--write")

    assert result.code == 0, result.err
    head = read_json(directory / "config.json")["alignment"]
    assert (head["layer"], head["head"]) == (1, 2)
    assert call("convert", "--checkpoint", directory, "-o", tmp_path / "compact").code == 0
    assert read_json(tmp_path / "compact" / "config.json")["alignment"] == head


def test_a_model_that_needs_a_voice_is_measured_with_the_one_that_is_named(call: Call, tmp_path: Path) -> None:
    directory = qwen3_room.follow_text(qwen3_room.written(tmp_path / "base", "base"))
    loaded = qwen3_room.opened(directory)
    (directory / "voices").mkdir()
    voice = Voice({"vector": torch.zeros(32), "codes": torch.full((loaded.config.num_codebooks, 9), START)}, "xyz")
    write_voice(directory / "voices", "mine", voice)
    options = ("align", "--checkpoint", directory, "--text", LETTERS, "--device", "cpu")

    without, named, unknown = (call(*options, *more) for more in ((), ("--voice", "mine"), ("--voice", "other")))

    assert (without.code, named.code, unknown.code) == (1, 0, 1), named.err
    assert "specify one of mine" in without.err
    assert "unknown voice 'other'; available: mine" in unknown.err


def test_reference_times_set_the_shift(call: Call, checkpoint: Path, tmp_path: Path) -> None:
    options = ("align", "--checkpoint", checkpoint, *TEXTS, "--device", "cpu")
    before = (checkpoint / "config.json").read_bytes()
    first = call(*options, "--save", tmp_path / "spoken")
    with (tmp_path / "spoken" / "words.csv").open(encoding="utf-8", newline="") as file:
        header, *rows = csv.reader(file)
    late = [[sentence, word, str(float(start) + 0.07), end] for sentence, word, start, end in rows]
    with (tmp_path / "late.csv").open("w", encoding="utf-8", newline="") as file:
        csv.writer(file).writerows([header, *late])

    second = call(*options, "--words", tmp_path / "late.csv")

    assert first.code == second.code == 0, second.err
    shifts = [
        json.loads("{" + result.out.strip().splitlines()[-1] + "}")["alignment"]["shift_ms"]
        for result in (first, second)
    ]
    assert shifts[1] - shifts[0] == pytest.approx(70, abs=10)
    assert "starts differ by" in second.out
    assert (checkpoint / "config.json").read_bytes() == before, "changed without --write"
    assert sorted(path.name for path in (tmp_path / "spoken").iterdir()) == ["1.wav", "2.wav", "words.csv"]


@pytest.mark.parametrize(
    ("table", "message"),
    [
        ("word,start_s\nHello,0\n", "must be a table with the columns sentence, word, start_s, end_s"),
        ("sentence,word,start_s,end_s\n9,Hello,0,1\n", "and 2 sentences"),
        ("sentence,word,start_s,end_s\n1,The,nan,1\n", "must have the words of sentence 1"),
    ],
)
def test_a_table_of_other_words_is_refused(
    call: Call, checkpoint: Path, tmp_path: Path, table: str, message: str
) -> None:
    path = tmp_path / "words.csv"
    path.write_text(table, encoding="utf-8")

    result = call("align", "--checkpoint", checkpoint, *TEXTS, "--device", "cpu", "--words", path)

    assert result.code == 1
    assert "--words" in result.err
    assert message in result.err


@pytest.mark.parametrize(("text", "message"), [("Too long. " * 30, "the limit is 200"), ("...", "--text")])
def test_a_sentence_without_words_or_too_long_is_refused(call: Call, checkpoint: Path, text: str, message: str) -> None:
    result = call("align", "--checkpoint", checkpoint, "--text", text, "--device", "cpu")

    assert result.code == 1
    assert message in result.err


def test_a_config_that_is_managed_elsewhere_is_not_changed(call: Call, checkpoint: Path, tmp_path: Path) -> None:
    assert call("package", "--checkpoint", checkpoint, "-o", tmp_path / "packaged", "--layout", "prefix").code == 0

    results = [call("align", "--checkpoint", path, "--write") for path in (tmp_path / "packaged", DEFAULT_MODEL)]

    assert [result.code for result in results] == [1, 1]
    assert all("must not be changed" in result.err and "sentence 1" not in result.err for result in results)


@pytest.mark.long
def test_the_built_in_voice_has_the_head_that_its_config_names() -> None:
    candidates, found = calibrate(EngineConfig(**PLAIN), SENTENCES)

    named = read_json(DEFAULT_MODEL / "config.json")["alignment"]
    assert found is not None
    assert (found.head.layer, found.head.head) == (candidates[0].layer, candidates[0].head) == (3, 2)
    assert candidates[0].measures.share > 1.5 * candidates[2].measures.share
    assert candidates[3].measures.faults
    assert found.head.shift_ms == pytest.approx(named["shift_ms"], abs=10)
    assert found.head.pause_shift_ms == pytest.approx(named["pause_shift_ms"], abs=30)
    assert found.head.end_shift_ms == pytest.approx(named["end_shift_ms"], abs=50)  # of eight ends from 60 to 340 ms


@pytest.mark.parametrize("family", ["s1", "mel"])
def test_all_heads_together_have_the_scores_of_each_alone(
    following: tuple[Path, float], tiny: Path, family: str
) -> None:
    """The constant of each frame is left out, and a step of SpeechT5 has two frames, each with half of its scores."""
    together, alone = [], []
    for several in (True, False):
        speaker = load(EngineConfig(checkpoint_path=tiny if family == "s1" else following[0], **PLAIN))
        layers, width = speaker.loaded.text_heads
        heads = [AlignmentHead(layer, head, 0, 0, 0) for layer in range(layers) for head in range(width)]
        for chosen in [heads] if several else [[head] for head in heads]:
            speaker.loaded.heads = chosen
            synthesizer = Synthesizer(speaker, EngineConfig(**PLAIN))
            sampling, request = SamplingParams(seed=1, max_new_tokens=6), TTSRequest("", word_times=True)
            queue = synthesizer.speak(["Hello."], [], sampling, request)
            recorder = Recorder()
            queue.finish = Finishing(PartFinish(recorder))
            assert list(queue)
            synthesizer.close(drains=False)
            (together if several else alone).append(
                np.concatenate([scores for each in recorder.frames for scores in each.scores])
            )

    scores = together[0] / (1 if family == "s1" else 2)
    assert scores.shape[1] == len(alone)
    for index, each in enumerate(alone):
        relative = [part - part.max(-1, keepdims=True) for part in (scores[:, index], each)]
        np.testing.assert_allclose(*relative, atol=1e-4)
