"""The mel networks match transformers' SpeechT5 alone, in batches, and without caches."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from s1_mini.core.messages import Begin, Conditions, Prefill
from s1_mini.families.mel.decoder import MASKED_STEPS, MelDecoder
from s1_mini.families.mel.verify import open_state, step_alone
from s1_mini.types import SamplingParams
from tests.families.mel_room import (
    TEXT,
    dropout,
    forced,
    inputs_of,
    opened,
    original,
    original_vocoder,
    run_free,
    speaker,
    written,
)

pytestmark = pytest.mark.usefixtures("no_grad")

SIZES = ["tiny", pytest.param("full", marks=pytest.mark.long)]


@pytest.mark.parametrize("size", SIZES)
def test_mel_and_sound_are_those_of_the_original_over_two_hundred_steps(
    size: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The full size is compared over fifty steps: it has the published shapes, and takes 0.1 s a step."""
    ratio = 10 if size == "tiny" else 2.5  # steps for each token
    for seed in (0, 1) if size == "tiny" else (0,):
        ours = opened(written(tmp_path / str(seed), size=size, seed=seed), prenet_dropout="off", stop_threshold=9.0)
        tokens, vector = torch.tensor(ours.tokenizer.encode(TEXT[:20])), speaker(seed)
        with dropout(monkeypatch, None):
            theirs = original(size, seed)
            mel = theirs.generate_speech(tokens.unsqueeze(0), vector.unsqueeze(0), threshold=9.0, maxlenratio=2 * ratio)

        made = run_free(ours.model, tokens, vector, most=int(ratio * len(tokens)))

        assert len(tokens) >= 20
        assert len(made) == len(mel) >= 2 * 20 * ratio
        encoded = theirs.speecht5.encoder(tokens.unsqueeze(0)).last_hidden_state
        assert (ours.model.encode(tokens.unsqueeze(0)) - encoded).abs().max() <= 1e-5
        assert (ours.model.postnet(made) - mel).abs().max() <= 1e-3
        assert made.std() > 0.1, "a mel of nothing would prove nothing"
        wave = original_vocoder(size, seed)(mel[:64])
        assert (ours.vocoder.speak(mel[:64]) - wave).abs().max() <= 1e-5
        assert wave.std() > 0.1


@pytest.mark.parametrize("seed", [0, 1])
def test_along_given_frames_and_masks_the_mel_is_the_originals(
    seed: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = opened(written(tmp_path / "it", seed=seed), stop_threshold=9.0).model
    tokens, vector = torch.tensor([5, 9, 14, 7, 6, 2]), speaker(seed)
    masks = torch.rand(60, 2, model.config.prenet_units, generator=torch.Generator().manual_seed(seed)) >= 0.5
    theirs = original("tiny", seed)
    with dropout(monkeypatch, masks):
        theirs.speech_decoder_postnet.postnet = lambda frames: frames
        mel = theirs.generate_speech(tokens.unsqueeze(0), vector.unsqueeze(0), threshold=9.0)

    state = open_state(model, {"tokens": tokens, "speaker": vector, "masks": masks}, 60)

    assert (forced(model, state, inputs_of(mel)) - mel).abs().max() <= 1e-4
    free = run_free(model, tokens, vector, masks=masks, most=60)
    assert (free - mel).abs().max() <= 1e-3
    without = run_free(model, tokens, vector, masks=torch.ones_like(masks), most=60)
    assert (without - mel).abs().max() > 0.01, "the masks must matter"


def test_it_ends_at_the_originals_step_and_not_before_the_least(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Thresholds lie between a probability that is higher than all before it and the highest of those."""
    directory, vector, theirs = written(tmp_path / "it"), speaker(4), original("tiny", 0)
    tokens = torch.tensor(opened(directory).tokenizer.encode("A test."))
    probabilities: list[float] = []
    theirs.speech_decoder_postnet.prob_out.register_forward_hook(
        lambda _, __, logits: probabilities.append(float(logits.sigmoid().sum()))
    )

    def their_steps(**options: float) -> int:
        with dropout(monkeypatch, None):
            return len(theirs.generate_speech(tokens.unsqueeze(0), vector.unsqueeze(0), **options)) // 2

    most = their_steps(threshold=9.0)
    highest = [max(probabilities[:at]) for at in range(1, most)]
    records = [at for at in range(1, most) if probabilities[at] > highest[at - 1]]
    thresholds = [(probabilities[at] + highest[at - 1]) / 2 for at in records]

    assert len(records) > 1
    for at, threshold, ratio in [
        *zip(records, thresholds, [0.0] * len(records), strict=True),
        (None, thresholds[0], 12.0),
    ]:
        model = opened(directory, prenet_dropout="off", stop_threshold=threshold).model
        state = open_state(model, {"tokens": tokens, "speaker": vector}, most)
        state.min_steps.fill_(model.steps_for(len(tokens), ratio))
        stops = [bool(step_alone(model, state)[-2]) for _ in range(most)]
        steps = their_steps(threshold=threshold, minlenratio=ratio)
        assert steps == (stops.index(True) + 1 if True in stops else most)
        assert at is None or steps == at + 1


def test_output_is_the_same_with_and_without_caches(tmp_path: Path) -> None:
    model = opened(written(tmp_path / "it", seed=3), stop_threshold=9.0).model
    tokens, vector = torch.tensor([5, 9, 14, 7, 6, 2]), speaker(3)
    masks = torch.rand(60, 2, model.config.prenet_units) >= 0.5
    made = run_free(model, tokens, vector, masks=masks, most=60)

    text = model.cross(model.encode(tokens.unsqueeze(0)))
    whole = model.whole(inputs_of(made), vector, text, masks.flatten(1))

    assert (model.heads(whole)[0].reshape(-1, 80) - made).abs().max() <= 1e-5


def test_texts_encoded_together_and_filled_up_are_as_encoded_alone(tmp_path: Path) -> None:
    model = opened(written(tmp_path / "it")).model
    texts = [torch.arange(4, 4 + count) for count in (3, 17, 40)]
    filled = torch.zeros(3, 64, dtype=torch.int64)
    for row, text in enumerate(texts):
        filled[row, : len(text)] = text

    together = model.encode(filled, torch.tensor([len(text) for text in texts]))

    for row, text in enumerate(texts):
        assert (together[row, : len(text)] - model.encode(text.unsqueeze(0))[0]).abs().max() <= 1e-5


@pytest.mark.parametrize("threads", [1, 2])
def test_a_step_has_the_same_bits_in_every_slot_with_any_neighbours(tmp_path: Path, threads: int) -> None:
    model, start, steps = opened(written(tmp_path / "checkpoint"), stop_threshold=9.0).model, 50, 4
    before = torch.get_num_threads()

    def frames(slots: dict[int, int], slot: int) -> torch.Tensor:
        """Return the frames of a slot beyond a whole span; `slots` maps each to the seed of its text and its past."""
        state = model.allocate(8, 300)
        for at, seed in slots.items():
            tokens = torch.randint(4, 70, (1, 20 + 30 * seed), generator=torch.Generator().manual_seed(seed))
            model.begin(state, at, speaker(seed), 0)
            model.read(state, tokens, torch.tensor([at]))
            model.keep(state, at, start, model.sample_kept(seed, 0, 0, steps))
            for past in (state.steps.keys[:, at], state.steps.values[:, at]):
                past.normal_(generator=torch.Generator().manual_seed(seed))
            state.active[at], state.position[at] = True, start
        spans = {0: (128, 64), 3: (128, 128), 7: (256, 300)}[max(slots)]
        return torch.stack([model.step(state, *spans, 1 + max(slots))[slot] for _ in range(steps)])

    torch.set_num_threads(threads)
    try:
        alone = frames({0: 1}, 0)

        assert torch.equal(alone, frames({3: 1}, 3))
        assert torch.equal(alone, frames({0: 2, 3: 1}, 3))
        assert torch.equal(alone, frames({slot: slot or 8 for slot in range(8)}, 1))
        assert torch.equal(alone, frames({**{slot: slot + 2 for slot in range(7)}, 7: 1}, 7))
    finally:
        torch.set_num_threads(before)


def test_graphs_of_steps_and_texts_match_eager_calls(tmp_path: Path) -> None:
    """On a CPU the captured calls run eagerly: shapes and rows are those of a GPU."""
    model = opened(written(tmp_path / "it"), stop_threshold=9.0).model
    stages = [MelDecoder(model, slots=6, steps=128) for _ in range(2)]
    stages[1].make_graphs()
    made = []
    for stage in stages:
        texts = {slot: torch.arange(4, 9 + 7 * slot).numpy() for slot in (0, 1, 2, 4, 5)}
        for slot, text in texts.items():
            asked = Conditions(SamplingParams(), slot, 0, 50, {"speaker": speaker(slot).numpy()})
            stage.begin([Begin(slot, 0, text, None, 0, 50, 1, 0, len(text), asked)])
        stage.prefill([Prefill(slot, 0, len(text)) for slot, text in texts.items()])
        rows = [stage.step([0, 2, 5], 1)() for _ in range(5)] + [stage.step([0, 1], 1)() for _ in range(3)]
        made.append(torch.cat([torch.from_numpy(row.values.copy()).flatten() for row in rows]))
        assert all(all(row.valid) and row.counts == [2] * len(row.counts) for row in rows)

    assert (made[0] - made[1]).abs().max() <= 1e-5
    assert made[0].std() > 0.1


def test_masks_are_sampled_step_by_step_and_not_in_advance(tmp_path: Path) -> None:
    model = opened(written(tmp_path / "it"), stop_threshold=9.0).model
    stage, text = MelDecoder(model, slots=1, steps=1000), torch.arange(4, 9).numpy()
    asked = Conditions(SamplingParams(), 3, 0, 900, {"speaker": speaker(0).numpy()})

    stage.begin([Begin(0, 0, text, None, 0, 900, 1, 0, len(text), asked)])
    stage.prefill([Prefill(0, 0, len(text))])
    stage.step([0], 1)()

    kept = stage.state.kept
    assert kept is not None
    assert 0.4 < kept[0, MASKED_STEPS - 1].float().mean() < 0.6
    assert not kept[0, MASKED_STEPS:].any()
    for _ in range(MASKED_STEPS):
        stage.step([0], 1)()
    assert 0.4 < kept[0, 2 * MASKED_STEPS - 1].float().mean() < 0.6
    assert not torch.equal(kept[0, :MASKED_STEPS], kept[0, MASKED_STEPS : 2 * MASKED_STEPS])


def test_with_channels_last_as_on_a_gpu_postnet_and_vocoder_give_the_same(tmp_path: Path) -> None:
    plain, other = (opened(written(tmp_path / name, seed=2)) for name in ("a", "b"))
    other.vocoder.prepare()
    postnet = other.model.network.speech_decoder_postnet
    postnet.prepare(other.vocoder.device, other.vocoder.dtype, other.vocoder.axis)
    frames = torch.randn(70, 80, generator=torch.Generator().manual_seed(1))

    mels = [loaded.model.postnet(frames) for loaded in (plain, other)]
    waves = [loaded.vocoder.speak(mels[0]) for loaded in (plain, other)]

    assert (mels[0] - mels[1]).abs().max() <= 1e-5
    assert (waves[0] - waves[1]).abs().max() <= 1e-5
