"""The network matches its plain reference for every switch that `config.json` can set."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

import reference_s1
from s1_mini.families.codec_lm.model import SamplingTensors
from s1_mini.families.s1.model import S1Model, S1State
from s1_mini.families.s1.random import RECIPES, Recipe, random_model
from s1_mini.layers.staging import Writes
from tests.families.s1_room import build

pytestmark = pytest.mark.usefixtures("no_grad")

SWITCHES: dict[str, dict[str, Any]] = {
    "published": {},
    "qkv bias": {"attention_qkv_bias": True},
    "o bias": {"attention_o_bias": True},
    "no q/k norm": {"attention_qk_norm": False},
    "depth q/k norm": {"fast_attention_qk_norm": True},
    "tied head": {"tie_word_embeddings": True},
    "unscaled codebooks": {"scale_codebook_embeddings": False},
    "fast_dim differs": {"fast_dim": 24, "fast_n_head": 2},
    "normed depth input": {"norm_fastlayer_input": True},
    "no grouping": {"n_local_heads": -1},
    "head_dim left out": {"head_dim": None},
    "other rope base": {"rope_base": 10_000},
    "four codebooks": {"num_codebooks": 4},
}


def random_tokens(model: S1Model, length: int, seed: int = 0) -> torch.Tensor:
    """Some text, then frames: [K + 1, length]."""
    generator = torch.Generator().manual_seed(seed)
    tokens = torch.randint(0, 64, (model.num_codebooks + 1, length), generator=generator)
    tokens[0, length // 2 :] = model.tokenizer.semantic_begin + tokens[1, length // 2 :]
    tokens[1:, : length // 2] = 0
    return tokens


def sampling(rows: int, codebooks: int, frames: int = 8, temperature: float = 0.8) -> SamplingTensors:
    table = torch.rand(rows, frames, codebooks, generator=torch.Generator().manual_seed(1))
    return SamplingTensors(torch.full((rows,), temperature), torch.full((rows,), 0.9), torch.full((rows,), 1.1), table)


def begun(model: S1Model, prompts: list[torch.Tensor], positions: int = 32) -> S1State:
    """Slots that are prefilled and about to generate their first frame."""
    state = model.allocate(len(prompts), positions)
    for slot, prompt in enumerate(prompts):
        model.prefill(state, slot, prompt[:, :-1])
        model.activate(state, slot, prompt)
    return state


def codes_of(frames: torch.Tensor) -> torch.Tensor:
    return frames[:, 1:-2]


@pytest.mark.parametrize("name", SWITCHES)
def test_every_switch_computes_what_the_plain_reference_computes(name: str, tmp_path: Path) -> None:
    model = build(tmp_path, SWITCHES[name], heads="full")
    config, weights = model.network.config, random_model(Recipe(RECIPES["tiny"].model | SWITCHES[name]))
    tokens = random_tokens(model, 12)
    state = model.allocate(1, 20)

    model.prefill(state, 0, tokens[:, :5], start=0)
    model.prefill(state, 0, tokens[:, 5:-1], start=5)
    model.activate(state, 0, tokens)
    hidden = model.hidden(state, span=12)
    depth_logits: list[torch.Tensor] = []

    def follow(codebook: int, logits: torch.Tensor, embeddings: torch.Tensor) -> torch.Tensor:
        depth_logits.append(logits[0])
        return embeddings[tokens[codebook + 1, -1:]]

    model.network.depth(hidden, model.network.fast_embeddings(tokens[1, -1:]), state.depth_cache, state.pairs, follow)

    expected, expected_logits = reference_s1.backbone(
        config, weights, tokens, model.tokenizer.semantic_begin, model.tokenizer.semantic_end
    )
    assert torch.allclose(hidden[0], expected[-1], atol=1e-4)
    assert torch.allclose(model.network.semantic_logits(hidden)[0], expected_logits[-1], atol=1e-4)
    expected_depth = reference_s1.depth(config, weights, expected[-1], tokens[1:, -1].tolist())
    assert torch.allclose(torch.stack(depth_logits), expected_depth, atol=1e-4)


def test_restricted_heads_are_rows_of_the_full_ones(tmp_path: Path) -> None:
    """Semantic tokens in order, then the end token."""
    full, restricted = build(tmp_path, {}, heads="full"), build(tmp_path, {})
    hidden = torch.randn(1, 32, generator=torch.Generator().manual_seed(0))
    tokenizer = full.tokenizer

    kept = [*range(tokenizer.semantic_begin, tokenizer.semantic_end + 1), tokenizer.control("im_end")]

    expected = full.network.semantic_logits(hidden)[:, kept]
    assert torch.allclose(restricted.network.semantic_logits(hidden), expected, atol=1e-6)


def test_rows_of_different_lengths_step_together_as_they_step_alone(tmp_path: Path) -> None:
    model = build(tmp_path, {})
    prompts = [random_tokens(model, length, seed) for seed, length in enumerate((5, 9, 14))]
    together, params = begun(model, prompts), sampling(3, 10)

    batch = torch.stack([codes_of(model.step(together, params, span=14 + i)) for i in range(6)], dim=1)

    for slot, tokens in enumerate(prompts):
        alone = begun(model, [tokens])
        own = SamplingTensors(*(part[slot : slot + 1] for part in params))
        single = [codes_of(model.step(alone, own, span=tokens.shape[1] + i))[0] for i in range(6)]
        assert torch.equal(batch[slot], torch.stack(single))


def read_rows(model: S1Model, state: S1State, pieces: list[tuple[int, int, torch.Tensor]], idle: int = 0) -> None:
    """Prefill tokens [K + 1, n] of every (slot, start, tokens) in one call, with `idle` positions of padding."""
    slots = [slot for slot, _, tokens in pieces for _ in range(tokens.shape[1])]
    positions = [start + at for _, start, tokens in pieces for at in range(tokens.shape[1])]
    tokens = torch.cat([tokens for _, _, tokens in pieces], dim=1)
    model.prefill_rows(
        state,
        torch.cat((tokens.t(), tokens.t()[:idle])),
        torch.tensor(slots + slots[:idle]),
        torch.tensor(positions + [-1] * idle),
        state.max_positions,
    )


@pytest.mark.parametrize("switches", [{}, {"attention_qk_norm": False}, {"attention_qkv_bias": True}])
def test_prompts_that_are_prefilled_together_match_those_prefilled_alone(
    tmp_path: Path, switches: dict[str, Any]
) -> None:
    """Several slots in one call, the longest in two parts, and some rows without a position."""
    model = build(tmp_path, switches)
    prompts = [random_tokens(model, length, seed) for seed, length in enumerate((5, 9, 14))]
    alone, together = model.allocate(4, 32), model.allocate(4, 32)
    for state in (alone, together):
        state.cache.keys.fill_(7.0)
        state.cache.values.fill_(7.0)
    for slot, tokens in enumerate(prompts):
        model.prefill(alone, slot, tokens[:, :-1])

    read_rows(model, together, [(0, 0, prompts[0][:, :-1]), (2, 0, prompts[2][:, :6])], idle=3)
    read_rows(model, together, [(2, 6, prompts[2][:, 6:-1]), (1, 0, prompts[1][:, :-1])])

    seen = slice(together.max_positions)  # the last position is padding
    torch.testing.assert_close(together.cache.keys[..., seen, :], alone.cache.keys[..., seen, :])
    torch.testing.assert_close(together.cache.values[..., seen, :], alone.cache.values[..., seen, :])
    assert together.position.tolist() == [0] * 4
    said = []
    for state in (alone, together):
        for slot, tokens in enumerate(prompts):
            model.activate(state, slot, tokens)
        said.append(torch.stack([codes_of(model.step(state, sampling(4, 10), span=14 + i))[:3] for i in range(6)]))
    assert torch.equal(*said)


def test_an_idle_row_is_not_changed_by_other_rows_steps(tmp_path: Path) -> None:
    model = build(tmp_path, {})
    state = begun(model, [random_tokens(model, 8)] * 2, 16)
    state.active[1], state.position[1] = False, 0
    before = state.cache.keys[:, 1, :, : state.max_positions].clone()

    model.step(state, sampling(2, 10), span=8)

    assert torch.equal(state.cache.keys[:, 1, :, : state.max_positions], before)
    assert state.position.tolist() == [8, 0]
    assert state.count.tolist() == [1, 0]


def test_the_first_frame_is_never_the_end(tmp_path: Path) -> None:
    model = build(tmp_path, {})
    model.network.output.weight[-1] = model.network.output.weight[:-1].sum(0) * 100
    ends = []
    for seed in range(20):
        state = begun(model, [random_tokens(model, 8, seed)], 16)
        ends.append(bool(model.step(state, sampling(1, 10), span=8)[0, -2]))

    assert not any(ends)


def test_logits_that_are_not_finite_are_reported_for_their_row_alone(tmp_path: Path) -> None:
    model = build(tmp_path, {})
    state = begun(model, [random_tokens(model, 8)] * 2, 16)
    state.cache.values[0, 1, 0, 0] = float("nan")

    frames = model.step(state, sampling(2, 10), span=8)

    assert frames[:, -1].tolist() == [1, 0]


def test_a_saved_prefix_matches_one_just_computed(tmp_path: Path) -> None:
    model = build(tmp_path, {}, heads="full")
    tokens, shared = random_tokens(model, 12), 7
    state = model.allocate(2, 32)
    model.prefill(state, 0, tokens[:, :shared])
    model.prefill(state, 0, tokens[:, shared:-1], shared)

    prefix = state.save(0, shared)
    state.cache.load(1, prefix.state, writes := Writes(model.device))
    writes.run()
    model.prefill(state, 1, tokens[:, shared:-1], shared)

    for slot in (0, 1):
        model.activate(state, slot, tokens)
    table = sampling(2, model.num_codebooks)
    table.uniforms[1] = table.uniforms[0]
    for step in range(6):
        codes = codes_of(model.step(state, table, 12 + step))
        assert torch.equal(codes[0], codes[1])
    assert prefix.num_bytes == sum(part.numel() * 4 for part in prefix.state)


def test_a_paused_row_resumes_unchanged(tmp_path: Path) -> None:
    model = build(tmp_path, {}, heads="full")
    tokens = random_tokens(model, 8)
    table = sampling(1, model.num_codebooks)
    frames = []
    for rests in (False, True):
        state, said = begun(model, [tokens]), []
        for step in range(5):
            if rests and step == 3:
                state.active[0] = False
                model.step(state, table, 32)
                state.active[0] = True
            said.append(codes_of(model.step(state, table, 32)))
        frames.append(torch.stack(said))

    assert torch.equal(frames[0], frames[1])
