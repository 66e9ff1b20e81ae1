"""The cascade in the real engine: batches, streams, cancellation, caching, and error messages."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch

from s1_mini import EngineConfig, ProductionTTSEngine
from s1_mini.core.messages import Begin, Conditions
from s1_mini.exceptions import GenerationError, ParameterError, TextError, VoiceUnsupportedError
from s1_mini.families.cascade import stages
from s1_mini.families.cascade.loaded import LoadedCascade
from s1_mini.families.cascade.prompt import build_prompt
from s1_mini.families.cascade.random import random_voice
from s1_mini.families.cascade.verify import run_stage
from s1_mini.types import SamplingParams, Voice

TEXTS = ["One.", "Two of them, here.", "A third one that is longer than they are.", "[laughs] Four! ♪ la la ♪"]


def config_of(cascade: Path, **settings: object) -> EngineConfig:
    return EngineConfig(checkpoint_path=cascade, device="cpu", **settings)


@pytest.fixture(scope="module")
def engine(cascade: Path) -> Iterator[ProductionTTSEngine]:
    with ProductionTTSEngine(config_of(cascade, max_batch_size=4)) as engine:
        yield engine


def test_skipped_computation_changes_no_token(
    cascade: Path, engine: ProductionTTSEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    def speak(engine: ProductionTTSEngine) -> list[np.ndarray]:
        ways = [(TEXTS[1], {"voice": "two"}), (TEXTS[3], {"temperature": 0.0})]
        return [engine.generate(text, seed=3, max_new_tokens=24, **asked).audio for text, asked in ways]

    with_them = speak(engine)
    monkeypatch.setattr(LoadedCascade, "merges", False)
    monkeypatch.setattr(LoadedCascade, "begins_early", False)

    with ProductionTTSEngine(config_of(cascade, max_batch_size=4)) as plain:
        without = speak(plain)

    assert all(np.array_equal(one, other) for one, other in zip(with_them, without, strict=True))


def test_a_long_text_continues_in_the_voice_of_its_beginning(engine: ProductionTTSEngine) -> None:
    text = " ".join(["This is one sentence of many, long enough that they are spoken one by one."] * 3)

    heard = engine.generate(text, seed=4, max_new_tokens=8)

    assert heard.frames > 16
    assert np.array_equal(heard.audio, engine.generate(text, seed=4, max_new_tokens=8).audio)


def test_a_result_without_tokens_is_an_error_and_affects_no_other(engine: ProductionTTSEngine) -> None:
    semantic = engine._running.synthesizer._chain.stages[0]
    before, semantic._min_eos_p = semantic._min_eos_p, 1e-12
    try:
        with pytest.raises(GenerationError, match=r"no audio.*Try a different seed"):
            engine.generate("Hello.", seed=1)
    finally:
        semantic._min_eos_p = before

    assert engine.generate("Hello.", seed=1, max_new_tokens=4).frames


def test_an_empty_warm_up_result_does_not_prevent_a_start(cascade: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    uniforms = stages.stage_uniforms

    def ended(logits: torch.Tensor, choice: torch.Tensor, end: int, _: float) -> torch.Tensor:
        return torch.full_like(choice, end) if unlucky else choice

    def drawn(number: int, begin: Begin, count: int, draws: int = 1) -> torch.Tensor:
        unlucky[:] = [True] if begin.conditions.seed < 2 else []
        return uniforms(number, begin, count, draws)

    unlucky: list[bool] = []
    monkeypatch.setattr(stages, "end_early", ended)
    monkeypatch.setattr(stages, "stage_uniforms", drawn)

    with ProductionTTSEngine(config_of(cascade)) as engine:
        assert engine.generate("Hello.", seed=5, max_new_tokens=4).frames


def test_recordings_are_refused_and_voice_files_are_spoken_with(
    engine: ProductionTTSEngine, loaded_cascade: LoadedCascade, tone: np.ndarray, tmp_path: Path
) -> None:
    voice = {name: value.numpy() for name, value in random_voice(loaded_cascade.config, 240).items()}
    np.savez(tmp_path / "one.npz", **voice)
    asked = {"seed": 1, "max_new_tokens": 4}

    with pytest.raises(VoiceUnsupportedError, match=r"cannot clone a voice from a recording"):
        engine.generate("Hello.", reference_audio=tone, reference_text="Aah.", **asked)
    engine.add_voice("mine", tmp_path / "one.npz", "")

    expected = engine.generate("Hello.", voice="one", **asked).audio
    assert np.array_equal(engine.generate("Hello.", voice="mine", **asked).audio, expected)
    assert np.array_equal(engine.generate("Hello.", reference_audio=tmp_path / "one.npz", **asked).audio, expected)


def test_unsupported_parameters_are_refused_and_top_k_is_supported(engine: ProductionTTSEngine) -> None:
    asked = {"seed": 1, "max_new_tokens": 8, "temperature": 1.5, "top_p": 1.0}

    with pytest.raises(ParameterError, match="repetition_penalty"):
        engine.generate("Hello.", repetition_penalty=1.5, **asked)

    greedy = engine.generate("Hello.", **asked | {"temperature": 0.0}).audio
    assert np.array_equal(engine.generate("Hello.", top_k=1, **asked).audio, greedy)
    assert not np.array_equal(engine.generate("Hello.", **asked).audio, greedy)


def test_stages_can_be_placed_by_their_names(cascade: Path, engine: ProductionTTSEngine) -> None:
    with ProductionTTSEngine(config_of(cascade, placement="semantic=cpu,coarse=cpu,fine=cpu,codec=cpu")) as other:
        audio = other.generate(TEXTS[1], seed=3, max_new_tokens=24).audio

    assert np.array_equal(audio, engine.generate(TEXTS[1], seed=3, max_new_tokens=24).audio)


def test_an_utterance_of_too_many_tokens_is_reported_with_their_number(loaded_cascade: LoadedCascade) -> None:
    with pytest.raises(TextError, match="257 tokens; the model's limit is 256"):
        loaded_cascade.prompt("?" * 257, [])

    assert len(loaded_cascade.prompt("?" * 256, []).items) == 257


def test_graphs_match_eager_computation(loaded_cascade: LoadedCascade) -> None:
    voice = Voice(random_voice(loaded_cascade.config, 100), "")
    prompt = build_prompt(loaded_cascade.config.numbers, [5, 9], voice)
    given = [prompt.items, np.arange(45), np.arange(1200).reshape(-1, 2) % 1024]
    plain, captured = loaded_cascade.chain(2, 1024), loaded_cascade.chain(2, 1024)
    for stage in captured.stages[:3]:
        with torch.inference_mode():
            stage.make_graphs()

    for number, items in enumerate(given):
        expected = run_stage(plain, number, items, prompt, max_steps=20)
        assert len(expected)
        assert np.array_equal(run_stage(captured, number, items, prompt, max_steps=20), expected)


@pytest.mark.parametrize("most", [3, 6])
def test_several_fine_windows_in_one_call_are_each_as_alone(loaded_cascade: LoadedCascade, most: int) -> None:
    chain, prompt = loaded_cascade.chain(4, 1024), build_prompt(loaded_cascade.config.numbers, [5], None)
    stage = chain.stages[2]
    frames = [np.arange(2 * n).reshape(-1, 2) * 7 % 1024 for n in (1, 20, 300)]
    alone = [run_stage(chain, 2, given, prompt, max_steps=9) for given in frames]
    conditions = Conditions(SamplingParams(temperature=0), 0, 0, 9, prompt.voice)
    slots = range(most)
    with torch.inference_mode():
        object.__setattr__(stage._policy, "together", most)
        stage.make_graphs()
        stage.begin([Begin(i, 0, frames[i % 3], None, 0, 1, 1, 0, len(frames[i % 3]), conditions) for i in slots])
        made = stage.step(list(slots), 1)()

    assert all(np.array_equal(made.values[slot], alone[slot % 3]) for slot in slots)


def test_fine_codes_can_be_sampled_and_then_depend_on_the_seed_alone(cascade: Path) -> None:
    with ProductionTTSEngine(config_of(cascade, fine_temperature=0.7)) as engine:
        one, again, other = (engine.generate("Hi.", seed=seed, max_new_tokens=4).audio for seed in (1, 1, 2))
        batch = engine.generate_batch(["Hi.", "Hello."], seed=1, max_new_tokens=4).results

    assert np.array_equal(one, again)
    assert np.array_equal(one, batch[0].audio)
    assert not np.array_equal(one, other)
