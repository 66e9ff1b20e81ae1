"""Qwen3-TTS reports when words are spoken, from a head of its backbone, whatever the layout of the text is."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

import reference_qwen3 as reference
from s1_mini import CheckpointMismatchError, EngineConfig, ParameterError, ProductionTTSEngine
from s1_mini.alignment.head import UNREAD, AlignmentHead
from s1_mini.checkpoint.align import Recorder
from s1_mini.core.messages import Begin, Conditions, Prefill
from s1_mini.families.codec_lm.stage import LanguageModel
from s1_mini.families.qwen3.config import Qwen3Config
from s1_mini.families.qwen3.loaded import LoadedQwen3
from s1_mini.families.qwen3.prompt import TEXTS
from s1_mini.families.qwen3.random import model_json
from s1_mini.families.qwen3.voice import CODES, VECTOR
from s1_mini.layers.staging import Writes
from s1_mini.runtime.finishing import Finishing, PartFinish
from s1_mini.runtime.loader import load
from s1_mini.runtime.synthesizer import Synthesizer
from s1_mini.types import SamplingParams, TTSRequest, Voice, Word
from s1_mini.voices.library import write_voice
from s1_mini.weights.directory import read_json
from tests.families.qwen3_room import LETTERS, RATE, START, clone, config, follow_text, opened, written

HEAD = {"layer": 1, "head": 2, "shift_ms": 0}
FRAME_S = 0.08
# Kind of checkpoint, layout, and the transcript of the voice
LAYOUTS = {
    "whole": ("custom_voice", "whole", None),
    "step": ("custom_voice", "step", None),
    "continued": ("base", "auto", "xyz"),
    "continued, whole": ("base", "whole", "xyz"),
}
TWO_LAYOUTS = ["step", "continued, whole"]  # each kind of checkpoint and each layout once


def opened_engine(directory: Path, kind: str, layout: str, transcript: str | None) -> ProductionTTSEngine:
    """An engine whose only head follows `LETTERS`, with a default voice."""
    follow_text(written(directory, kind), HEAD)
    if transcript is not None:
        (directory / "voices").mkdir()
        loaded = opened(directory)
        codes = torch.full((loaded.config.num_codebooks, 9), START)
        voice = Voice({VECTOR: torch.zeros(loaded.config.backbone.dim), CODES: codes}, transcript)
        write_voice(directory / "voices", "mine", voice, is_default=True)
    return ProductionTTSEngine(config(directory, device="cpu", text_layout=layout))


@pytest.fixture(scope="module", params=LAYOUTS)
def engine(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ProductionTTSEngine]:
    with opened_engine(tmp_path_factory.mktemp("words") / "checkpoint", *LAYOUTS[request.param]) as engine:
        yield engine


def streamed(engine: ProductionTTSEngine, text: str, profile: str) -> list[Word]:
    chunks = engine.stream(text, word_times=True, chunk_profile=profile)
    return [word for chunk in chunks for word in chunk.words]


def test_words_begin_when_the_head_reaches_their_first_letters(engine: ProductionTTSEngine) -> None:
    words = engine.generate(LETTERS, word_times=True).words

    assert [word.text for word in words] == LETTERS.split()
    for before, word in pairwise(words):
        # the path spends the frames of a space, which the head does not follow, at its neighbours
        assert word.start_s == pytest.approx((word.start - 1) / RATE * FRAME_S, abs=FRAME_S)
        assert word.end_s > word.start_s == before.end_s


@pytest.mark.parametrize("engine", TWO_LAYOUTS, indirect=True, scope="module")
def test_streams_have_the_words_of_the_whole_whatever_their_chunks_are(engine: ProductionTTSEngine) -> None:
    small, large = (streamed(engine, LETTERS, profile) for profile in ("ttfa", "throughput"))
    whole = engine.generate(LETTERS, word_times=True).words

    assert small == large
    assert [word.text for word in small] == [word.text for word in whole]
    for live, word in zip(small[1:], whole[1:], strict=True):  # whole utterances use later frames too
        assert live.start_s == pytest.approx(word.start_s, abs=FRAME_S)


@pytest.mark.parametrize("engine", TWO_LAYOUTS, indirect=True, scope="module")
def test_words_in_a_batch_have_the_times_of_words_alone(engine: ProductionTTSEngine) -> None:
    texts = [LETTERS, "ghi jkl", "abc"]
    alone = [engine.generate(text, word_times=True, max_new_tokens=20).words for text in texts]

    together = engine.generate_batch(texts, word_times=True, max_new_tokens=20).results

    assert [result.words for result in together] == alone


@pytest.mark.parametrize("engine", TWO_LAYOUTS, indirect=True, scope="module")
def test_word_times_do_not_change_the_audio(engine: ProductionTTSEngine) -> None:
    plain, timed = (engine.generate(LETTERS, word_times=each, max_new_tokens=8) for each in (False, True))

    assert (plain.audio == timed.audio).all()
    assert plain.words == ()


def spoken(directory: Path, layout: str, text: str, frames: int) -> np.ndarray:
    """Scores [frames, heads, tokens] of all heads of a greedy utterance."""
    options: dict[str, Any] = {"checkpoint_path": directory, "device": "cpu", "compile": "false"}
    settings = EngineConfig(**options, max_batch_size=1, text_layout=layout)
    speaker = load(settings)
    layers, width = speaker.loaded.text_heads
    speaker.loaded.heads = [AlignmentHead(layer, head, 0, 0, 0) for layer in range(layers) for head in range(width)]
    synthesizer = Synthesizer(speaker, settings)
    sampling = SamplingParams(temperature=0.0, top_k=0, top_p=1.0, repetition_penalty=1.0, max_new_tokens=frames)
    voices = [clone(speaker.loaded, frames=20)]
    queue = synthesizer.speak([text], voices, sampling, TTSRequest("", word_times=True))
    recorder = Recorder()
    queue.finish = Finishing(PartFinish(recorder))
    assert list(queue)
    synthesizer.close(drains=False)
    return np.concatenate([scores for each in recorder.frames for scores in each.scores])


def expected_attention(loaded: LoadedQwen3, directory: Path, text: str, frames: int) -> torch.Tensor:
    """Attention [frames, heads, tokens] to the text and its end by the plain implementation, which keeps no cache."""
    values, prompts = read_json(directory / "config.json"), loaded.model.prompts
    weights = {name: tensor.float() for name, tensor in load_file(directory / "model.safetensors").items()}
    prompt = loaded.prompt(text, [clone(loaded, frames=20)])
    x = loaded.model.embed_prompt(state_of(loaded, prompt.voice), 0, torch.from_numpy(prompt.items))
    after = prompt.voice[TEXTS].tolist()
    generated = reference.generate(weights, values, x, after, frames=frames + 1, penalty=1.0)
    codes = generated["codes"][:frames]
    texts = [*after, *([loaded.config.text.pad] * frames)][: len(codes)]
    rows = reference.text_rows(weights, torch.tensor(texts))
    rows = rows + torch.stack([reference.code_row(weights, frame) for frame in codes.tolist()])
    layers: list[torch.Tensor] = []
    reference.transformer(weights, "talker.model.", values["talker_config"], torch.cat((x, rows)), layers)
    whole = [*prompt.items[:, 0].tolist(), *texts]
    tokens = [*prompts.with_role("assistant", text)[3:], loaded.config.text.end]
    places = [at for at in range(len(whole)) if whole[at : at + len(tokens)] == tokens[: len(whole) - at]]
    start = places[0]  # where the text is, found by its tokens
    attention = torch.cat(layers)[:, len(x) - 1 : -1, start : start + len(tokens)].transpose(0, 1)
    return torch.nn.functional.pad(attention, (0, len(tokens) - attention.shape[2]))


def state_of(loaded: LoadedQwen3, voice: dict[str, Any]) -> Any:
    state = loaded.model.allocate(1, 8)
    writes = Writes(loaded.model.device)
    loaded.model.take(state, [0], [Conditions(SamplingParams(), 0, 0, 1, voice)], writes)
    writes.run()
    return state


@torch.inference_mode()
@pytest.mark.parametrize("layout", ["whole", "step"])
def test_scores_are_the_attention_of_a_plain_implementation_to_the_tokens_of_the_text(
    tmp_path: Path, layout: str
) -> None:
    directory, text = written(tmp_path / "base", "base", seed=1), "Some words, and more."
    loaded = opened(directory, text_layout=layout)

    found = spoken(directory, layout, text, frames=8)
    expected = expected_attention(loaded, directory, text, frames=8).numpy()

    assert len(found) > 4
    assert found.shape == expected[: len(found)].shape
    is_read = found > UNREAD
    np.testing.assert_array_equal(is_read, expected[: len(found)] > 0)
    np.testing.assert_allclose(np.where(is_read, np.exp(found), 0), expected[: len(found)], atol=1e-5)
    assert is_read.all() == (layout == "whole")


@torch.inference_mode()
def test_scores_of_captured_steps_are_those_of_eager_ones(tmp_path: Path) -> None:
    directory = follow_text(written(tmp_path / "custom", "custom_voice"), HEAD)
    model = opened(directory, text_layout="step").model
    found = []
    for has_graphs in (True, False):
        stage = LanguageModel(model, slots=2, positions=64)
        if has_graphs:
            stage.make_graphs()
        for slot, text in enumerate((LETTERS, "def")):
            prompt = model.prompt(text)
            assert prompt.text is not None
            conditions = Conditions(SamplingParams(temperature=0), 0, 0, 8, prompt.voice, *prompt.text)
            count = len(prompt.items)
            stage.begin([Begin(slot, 0, prompt.items, None, 0, 8, 1, 0, count, conditions)])
            stage.prefill([Prefill(slot, 0, count - 1)])
        launched = [stage.step([0, 1], 2), stage.step([0, 1], 2)]
        results = [launched[0](), (third := stage.step([0, 1], 2)) and launched[1](), third()]
        found.append([result.scores[slot] for result in results for slot in (0, 1)])

    for ours, theirs in zip(*found, strict=True):
        np.testing.assert_allclose(ours, theirs, atol=1e-4)
    assert [int((scores > UNREAD).sum()) for scores in found[0][::2]] == [1, 2, 3]  # a token more in each frame


def test_tokens_end_where_their_characters_end_in_the_text(tmp_path: Path) -> None:
    prompts = opened(written(tmp_path / "custom", "custom_voice")).model.prompts
    text = "Né à\n\nKöln."

    ends = prompts.token_ends(text)

    # the random vocabulary has a token for each byte; the last one is the end
    assert ends.tolist() == [*range(1, len(text.encode()) + 1), len(text.encode())]


def test_a_checkpoint_without_a_head_refuses_word_times(tmp_path: Path) -> None:
    with (
        ProductionTTSEngine(config(written(tmp_path / "plain", "custom_voice"), device="cpu")) as engine,
        pytest.raises(ParameterError, match=r"word_times: .*no attention head that follows the text"),
    ):
        engine.generate("Hello.", word_times=True)


def test_a_head_that_the_backbone_does_not_have_is_refused() -> None:
    with pytest.raises(CheckpointMismatchError, match=r"alignment.layer=2 must be an integer from 0 to 1"):
        Qwen3Config.from_json(model_json("tiny") | {"alignment": HEAD | {"layer": 2}})
