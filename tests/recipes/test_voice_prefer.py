"""Preferences among the voice's own samples: which pairs are made, and what a training step does to them."""

from __future__ import annotations

import json
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from safetensors.torch import load_file

from recipes.voice import prefer
from recipes.voice.candidates import Judged, Speakers, Task, judge_figures, tasks, wrong_words
from recipes.voice.export import COLDER
from recipes.voice.model import uncached
from recipes.voice.prefer import Example, Pair, PreferenceTraining, Ranking, Rows, Settings, log_probabilities, pairs_of
from s1_mini import EngineConfig, ProductionTTSEngine
from s1_mini.families.s1.config import S1Config
from s1_mini.families.s1.model import S1Model
from s1_mini.kernels.positions import embed
from s1_mini.layers.kv_cache import KVStore
from s1_mini.text.form import TextForm
from s1_mini.types import Voice
from s1_mini.weights.directory import read_json

CPU = torch.device("cpu")
NOISE = np.random.default_rng(0)
TASKS = [Task("One more.", "One more.", "julia"), Task("Three.", "Three.", "clone"), Task("Ten.", "Ten.", "julia")]


def judged(task: list[int], mos: list[float], wrong: list[int], alike: list[float] | None = None) -> Judged:
    count = len(task)
    return Judged(
        task=np.array(task, np.int32),
        lengths=np.full(count, 2, np.int32),
        codes=np.zeros((8, 2 * count), np.int16),
        ended=np.ones(count, np.bool_),
        mos=np.array(mos, np.float32),
        wrong=np.array(wrong, np.int32),
        words=np.full(count, 2, np.int32),
        heard=np.zeros(count, np.float32),
        alike=np.array(alike or [0.5] * count, np.float32),
        pitch=np.full(count, np.nan, np.float32),
    )


def test_a_sample_with_wrong_words_loses_against_every_right_one() -> None:
    found = judged([0, 0, 0, 0], [4.5, 3.0, 3.1, 4.9], [0, 0, 1, 2])

    assert pairs_of(found, TASKS, Ranking(pairs=1), frozenset()) == [Pair(0, 3)]  # most wrong words
    assert pairs_of(found, TASKS, Ranking(pairs=2), frozenset()) == [Pair(0, 3), Pair(1, 2)]


def test_texts_without_a_right_sample_and_with_equal_samples_have_no_pair() -> None:
    found = judged([0, 0, 1, 1, 2, 2], [4.5, 3.0, 4.0, 4.1, 3.5, 4.0], [1, 1, 0, 0, 0, 0])

    assert pairs_of(found, TASKS, Ranking(pairs=1, alike=0.0), frozenset({"clone"})) == [Pair(5, 4)]


def test_the_similarity_counts_for_clones_only() -> None:
    found = judged([0, 0, 1, 1], [4.0, 4.2, 4.0, 4.2], [0] * 4, [0.9, 0.5, 0.9, 0.5])

    assert pairs_of(found, TASKS, Ranking(pairs=1, alike=1.0), frozenset({"clone"})) == [Pair(1, 0), Pair(2, 3)]


def test_the_generation_that_does_not_end_is_wrong() -> None:
    found = judged([0, 0], [4.0, 4.9], [0, 0])
    found.ended[1] = False

    assert pairs_of(found, TASKS, Ranking(pairs=1), frozenset()) == [Pair(0, 1)]


def test_spaces_do_not_matter_for_the_words() -> None:
    assert wrong_words(Task("FBI.", "F B I.", ""), "fbi") == (0, 3)
    assert wrong_words(Task("Help!", "Help!", ""), "Yelp.")[0] == 1


def test_a_third_of_the_texts_is_very_short_and_no_text_is_held_out() -> None:
    form = TextForm("en", frozenset(" !\"'(),-.:;?ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"))
    stream = tasks(form, ["julia", "alan"], ["clone"], None, 0)

    found = [next(stream) for _ in range(300)]

    assert sum(task.is_short for task in found) == 100
    assert {task.voice for task in found} == {"julia", "alan", "clone"}


@pytest.fixture
def work(tiny: Path, tmp_path: Path) -> Path:
    prefer.begin_work(tiny, tmp_path / "work")
    return tmp_path / "work"


def examples(training: PreferenceTraining, count: int) -> list[Example]:
    config = training.network.config
    found = []
    for number in range(count):
        prompt = np.zeros((5 + number, config.num_codebooks + 1), np.int64)
        prompt[:, 0] = NOISE.integers(1, 200, len(prompt))
        codes = [NOISE.integers(0, 32, (config.num_codebooks, 2 + number + one)).astype(np.int16) for one in (0, 1)]
        found.append(Example(prompt, codes[0], codes[1], [0.0, 0.0]))
    return found


def _the(store: KVStore, _layer: int) -> KVStore:
    return store


def test_the_log_probability_of_an_answer_is_that_of_the_engines_frames(work: Path) -> None:
    """Compared with the engine's own depth transformer and the backbone's logits, one position after the other."""
    training = PreferenceTraining(work, Settings(), CPU)
    [_, one] = examples(training, 2)
    rows = Rows.of([(one.prompt, one.worse), (one.prompt[:3], one.better)], training.tokenizer, CPU)
    with torch.no_grad():
        found = log_probabilities(training.network, training.tokenizer, rows)
    model = S1Model(PreferenceTraining(work, Settings(), CPU).network, training.tokenizer)
    network, (begin, _) = model.network, model.semantic
    items = rows.columns[0].T[: len(one.prompt) + one.worse.shape[1] + 1]
    total = 0.0
    with torch.no_grad():
        for at in range(len(one.prompt), len(items)):
            positions = torch.arange(at)
            store = uncached(network.config.backbone)
            mask = torch.ones(at, at, dtype=torch.bool).tril()
            x = embed(items[None, :at], network.embedding(model.semantic))
            hidden = network.backbone(x, positions[None], mask, partial(_the, store))[0, -1:]
            rows_of_speech = [*range(begin, begin + 64), training.tokenizer.control("im_end")]
            logits = COLDER["output.weight"] * network.semantic_logits(hidden)[0, rows_of_speech]
            total += float(logits.log_softmax(-1)[rows_of_speech.index(int(items[at, 0]))])
            if at == len(items) - 1:
                break
            chances = []

            def record(book: int, logits: torch.Tensor, table: torch.Tensor, at: int = at) -> torch.Tensor:
                code = items[at, book + 1]
                chances.append(float((COLDER["fast_output.weight"] * logits[0]).log_softmax(-1)[code]))  # noqa: B023
                return F.embedding(code[None], table)

            state = model.allocate(1, 2, kept=())
            first = F.embedding(items[at, 1][None], network.depth_embeddings(0))
            network.depth(hidden, first, state.depth_cache, state.pairs, record)
            total += sum(chances)
    assert found[0].item() == pytest.approx(total, abs=1e-3)


def test_a_row_does_not_depend_on_the_others_of_its_batch(work: Path) -> None:
    training = PreferenceTraining(work, Settings(), CPU)
    pair = examples(training, 3)
    with torch.no_grad():
        together = training.pair_log_probabilities(pair)
        alone = [training.pair_log_probabilities([one]) for one in pair]
    torch.testing.assert_close(together, torch.cat([part[place][None] for place in (0, 1) for part in alone]))


def test_a_step_makes_the_better_sample_more_likely_than_the_worse_one(work: Path) -> None:
    training = PreferenceTraining(work, Settings(rate=1e-3, imitate=0.0), CPU)
    pair = examples(training, 4)
    training.compute_reference(pair)

    before = training.step(pair, 0.0, prefer.WARM_UP)
    after = training.losses(pair)

    assert before.margin.abs().max() < 1e-4  # the weights are still those of the reference
    assert bool((after.margin > 0).all())
    assert after.total < before.total


def test_the_second_loss_raises_the_better_samples_likelihood(work: Path) -> None:
    training = PreferenceTraining(work, replace(Settings(), rate=1e-3, beta=0.0), CPU)
    pair = examples(training, 4)
    training.compute_reference(pair)

    training.step(pair, 0.0, prefer.WARM_UP)

    assert training.losses(pair).gained.mean() > 0


def test_the_trained_weights_are_exported_with_the_checkpoints_codec_and_voices(tiny: Path, work: Path) -> None:
    training = PreferenceTraining(work, Settings(rate=1e-2, epochs=2, batch=2, mean_decay=0.5), CPU)
    pair = examples(training, 4)
    training.train(pair[1:], pair[:1], 600.0)
    training.write(work / "model.safetensors")

    prefer.export(work, tiny)

    before, after = load_file(tiny / "model.safetensors"), load_file(work / "model.safetensors")
    assert before.keys() == after.keys()
    assert (work / "voice" / "codec.safetensors").read_bytes() == (tiny / "codec.safetensors").read_bytes()
    with ProductionTTSEngine(EngineConfig(checkpoint_path=work / "voice", device="cpu")) as engine:
        assert engine.generate("Hello.", max_new_tokens=2).audio is not None


def test_a_folder_continues_only_the_same_texts_and_voices(tmp_path: Path) -> None:
    def count() -> int:
        return len(json.loads((tmp_path / "tasks.json").read_text())["tasks"])

    prefer.write_tasks(tmp_path, TASKS[:2], ["julia"])
    prefer.write_tasks(tmp_path, TASKS, ["julia"])
    assert count() == 3
    prefer.write_tasks(tmp_path, TASKS[:1], ["julia"])
    assert count() == 3  # samples of the others may exist
    for every, built_in in ((TASKS[1:], ["julia"]), (TASKS, ["alan"])):
        with pytest.raises(SystemExit, match="use another --output"):
            prefer.write_tasks(tmp_path, every, built_in)


def test_more_texts_complete_the_last_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    numbers = []

    def generate(part: list[Task], first: int, *_: object, **__: object) -> Judged:
        numbers.append([first + place for place in range(len(part))])
        return judged(numbers[-1], [4.0] * len(part), [0] * len(part))

    monkeypatch.setattr(prefer, "candidates", generate)
    monkeypatch.setattr(prefer, "PER_FILE", 2)
    for count in (1, 3, 2):
        prefer.write_tasks(tmp_path, TASKS[:count], ["julia"])
        prefer.sample(None, None, tmp_path, TASKS[:count], copies=1, rows=1, seed=0, seconds=60.0)  # type: ignore[arg-type]

    assert numbers == [[0], [0, 1], [2]]
    assert prefer.read_samples(tmp_path)[0].task.tolist() == [0, 1, 2]


def test_a_folder_without_samples_is_named(tmp_path: Path) -> None:
    prefer.write_tasks(tmp_path, TASKS, ["julia"])
    with pytest.raises(SystemExit, match=f"{tmp_path.name} has no samples"):
        prefer.read_samples(tmp_path)


def test_training_names_the_voices_that_are_missing(work: Path) -> None:
    training = PreferenceTraining(work, Settings(), CPU)
    voice = Voice({"codes": torch.zeros(training.network.config.num_codebooks, 3, dtype=torch.int64)}, "One.")
    with pytest.raises(SystemExit, match="clone; add the --clones"):
        prefer.examples(training, judged([0, 0], [4.5, 3.0], [0, 0]), TASKS, [Pair(0, 1)], {"julia": voice})


def test_figures_without_voiced_speech_are_valid_json() -> None:
    figures = judge_figures(judged([0, 0], [4.5, 3.5], [0, 0]), np.ones(2, np.bool_))
    assert json.loads(json.dumps(figures, allow_nan=False))["pitch"] is None


@pytest.fixture
def speakers(tiny: Path) -> Speakers:
    found = Speakers(tiny, None, CPU)
    books = S1Config.from_json(read_json(tiny / "config.json")).num_codebooks
    found.voices["julia"] = Voice({"codes": torch.zeros(books, 3, dtype=torch.int64)}, "One.")
    return found


def test_samples_differ_and_end_at_their_limit(speakers: Speakers) -> None:
    found = speakers.speak([TASKS[0], TASKS[2]], [0, 2], 2, 0)

    assert len(found) == 4
    assert all(codes.shape[1] <= speakers.limit(TASKS[0]) for codes, _ in found)
    assert not np.array_equal(found[0][0], found[1][0])


def test_a_text_is_spoken_alone_as_with_others(speakers: Speakers) -> None:
    together = speakers.speak([TASKS[0], TASKS[2]], [0, 2], 2, 5)

    for place, number in enumerate((0, 2)):
        alone = speakers.speak([TASKS[number]], [number], 2, 5)
        for (codes, stopped), (expected, ended) in zip(together[2 * place : 2 * place + 2], alone, strict=True):
            assert np.array_equal(codes, expected)
            assert stopped == ended


def test_waves_of_one_batch_have_the_lengths_of_their_codes(speakers: Speakers) -> None:
    codes = [codes for codes, _ in speakers.speak([TASKS[0]], [0], 2, 0)]

    waves = speakers.hear([codes[0][:, :2], codes[1][:, :5]])

    torch.testing.assert_close(waves[0], speakers.hear([codes[0][:, :2]])[0], atol=2e-2, rtol=0)
    assert round(5 / 2, 1) == round(len(waves[1]) / len(waves[0]), 1)
