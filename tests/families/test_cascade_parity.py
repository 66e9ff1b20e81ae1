"""Every stage matches transformers' single runs token for token, and the codec matches its samples."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from reference_bark import Reference, Spoken, coarse_runs, piece_runs
from s1_mini import EngineConfig, ProductionTTSEngine
from s1_mini.families.cascade.config import read_cascade_config
from s1_mini.families.cascade.loaded import LoadedCascade
from s1_mini.families.cascade.prompt import build_prompt
from s1_mini.families.cascade.random import random_voice
from s1_mini.families.cascade.verify import run_stage, verify_cascade
from s1_mini.types import Voice
from tests.families.conftest import CPU

TOKENS = [5, 9, 77, 30, 2]
VOICE_LENGTHS = [0]  # semantic tokens; the next test has a voice of 420, of which a model sees some 250


def failed(directory: Path, spoken: Spoken) -> list[str]:
    checks = list(verify_cascade(directory, spoken.oracle("case"), CPU.device, 1e-5) or ())
    assert len(checks) == 4
    return [check.name for check in checks if not check.passed]


def voice_of(directory: Path, length: int, seed: int = 1) -> dict[str, torch.Tensor] | None:
    return random_voice(read_cascade_config(directory), length, seed) if length else None


@pytest.mark.parametrize("length", VOICE_LENGTHS)
def test_a_short_text_goes_through_all_stages_as_in_transformers(
    bark: Reference, published_cascade: Path, length: int
) -> None:
    spoken = bark.speak(TOKENS, voice_of(published_cascade, length), most=30)

    assert spoken.fine.shape[1] > 20
    assert failed(published_cascade, spoken) == []


@pytest.mark.parametrize("length", [420])
def test_another_size_seed_and_biases_match_transformers(
    other_bark: Reference, other_cascade: Path, length: int
) -> None:
    spoken = other_bark.speak(TOKENS[:3], voice_of(other_cascade, length, 5), most=25)

    assert failed(other_cascade, spoken) == []


def test_an_end_that_is_likely_enough_is_chosen_as_in_transformers(bark: Reference, published_cascade: Path) -> None:
    spoken = bark.speak(TOKENS, most=60, eos_p=1e-3)
    oracle = spoken.oracle("case") | {"case.min_eos_p": torch.tensor(1e-3)}

    assert 0 < len(spoken.semantic) < 60
    assert all(check.passed for check in verify_cascade(published_cascade, oracle, CPU.device, 1e-5) or ())


@pytest.mark.parametrize(
    ("lengths", "num_semantic"),
    [
        ([0], 225),  # beyond 660 codes, where a window no longer begins at the first token
        ([150], 60),
        ([60, 190, 191, 192], 21),  # consecutive lengths: a third of these voices have an odd number of codes
    ],
)
def test_coarse_windows_are_those_of_transformers(
    bark: Reference, loaded_cascade: LoadedCascade, lengths: list[int], num_semantic: int
) -> None:
    runs = list(coarse_runs(loaded_cascade, loaded_cascade.chain(1, 1024), bark, lengths, num_semantic=num_semantic))

    different = [n for n, (made, codes) in zip(lengths, runs, strict=True) if not np.array_equal(made % 1024, codes)]
    assert different == []
    # Ids beyond the second codebook's codes, as transformers allows them.
    assert num_semantic < 60 or (runs[0][0][:, 1] >= 1024).any()


@pytest.mark.long
@pytest.mark.parametrize("first_length", [61])
def test_each_piece_of_a_text_has_the_coarse_codes_of_transformers(
    bark: Reference, loaded_cascade: LoadedCascade, first_length: int
) -> None:
    runs = piece_runs(loaded_cascade, loaded_cascade.chain(1, 1024), bark, first_length)

    assert [torch.equal(*pair) for pair in runs] == [True] * 4


@pytest.mark.parametrize(("length", "frames"), [(0, 1024), (0, 1025), (100, 1300), (420, 512)])
def test_overlapping_fine_windows_are_those_of_transformers(
    bark: Reference, loaded_cascade: LoadedCascade, length: int, frames: int
) -> None:
    codes = torch.randint(0, 1024, (1, frames, 2), generator=torch.Generator().manual_seed(frames))
    voice = random_voice(loaded_cascade.config, length, 3) if length else None
    flat = codes + torch.tensor([10_000, 11_024])
    expected = bark.model.fine_acoustics.generate(
        flat.reshape(1, -1),
        semantic_generation_config=bark.semantic,
        coarse_generation_config=bark.coarse,
        fine_generation_config=bark.fine,
        history_prompt=voice,
    )
    prompt = build_prompt(loaded_cascade.config.numbers, TOKENS, voice and Voice(voice, ""))

    made = run_stage(loaded_cascade.chain(1, 1024), 2, codes[0].numpy(), prompt, max_steps=768)

    assert np.array_equal(made, expected[0].T.numpy())


def test_a_batch_of_unequal_texts_sounds_as_transformers_speaks_each_alone(
    bark: Reference, published_cascade: Path
) -> None:
    texts = ["One.", "Two of them, then.", "A third one that is longer."]
    with ProductionTTSEngine(EngineConfig(checkpoint_path=published_cascade, device="cpu", max_batch_size=3)) as engine:
        together = engine.generate_batch(texts, temperature=0.0, max_new_tokens=24).results
        encode = engine._running.speaker.loaded.tokenizer.encode
    waves = [bark.speak(encode(text), most=24).wave.numpy() for text in texts]

    assert not np.array_equal(waves[1][:4000], waves[2][:4000])
    for wave, result in zip(waves, together, strict=True):
        assert wave.shape == result.audio.shape
        # Joining utterances fades their ends, so only the samples between the fades are compared.
        assert np.abs(wave - result.audio)[2000:-4000].max(initial=0) < 1e-5
