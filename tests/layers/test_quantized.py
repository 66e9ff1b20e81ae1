"""A block with eight-bit linear layers matches one with the same weights in full precision."""

from __future__ import annotations

from copy import deepcopy

import pytest
import torch
from torch import nn

from s1_mini.kernels.weight import QuantizedWeight
from s1_mini.layers.kv_cache import CachePositions, KVCache
from s1_mini.layers.quantized import QuantizedLinear, quantize_linears
from s1_mini.layers.staging import Writes
from s1_mini.layers.transformer import BlockConfig, FeedForward, TransformerBlock, rope_table

SIZES = BlockConfig(
    dim=64, num_heads=4, num_kv_heads=2, head_dim=16, intermediate_size=96, norm_eps=1e-6, qkv_bias=True, qk_norm=True
)
POSITIONS = 6


def pair(dtype: torch.dtype) -> tuple[TransformerBlock, TransformerBlock]:
    """A quantised block, and one with the same weights in full precision; both merged."""
    torch.manual_seed(0)
    kept = TransformerBlock(SIZES).requires_grad_(False)
    for parameter in kept.parameters():
        parameter.copy_(torch.randn(parameter.shape) / 8)
    quantize_linears(kept, dtype)
    full = deepcopy(kept)
    for parent in (full.attention, full.feed_forward):
        for name, child in list(parent.named_children()):
            if isinstance(child, QuantizedLinear):
                linear = nn.Linear(*child.values.shape[::-1], bias=child.bias is not None)
                linear.weight.data = child.weight.dequantize(torch.float32)
                linear.bias = child.bias
                setattr(parent, name, linear.requires_grad_(False))
    for block in (kept, full):
        block.feed_forward.merge()
    return kept, full


def cache(dtype: torch.dtype = torch.float32) -> KVCache:
    return KVCache.allocate(layers=1, slots=2, heads=2, positions=POSITIONS, head_dim=16, dtype=dtype, device="cpu")


@pytest.mark.parametrize("dtype", [torch.int8, torch.float8_e4m3fn], ids=["int8", "fp8"])
def test_a_prompt_and_a_step_match_those_with_the_dequantized_weights(dtype: torch.dtype) -> None:
    x, rope = torch.randn(1, 5, 64), rope_table(POSITIONS, 16, 10_000, torch.device("cpu"), rounded_to=torch.bfloat16)
    mask = torch.ones(5, 5, dtype=torch.bool).tril()
    one = torch.tensor([5])
    outs = []
    for block in pair(dtype):
        kept = cache()
        block_out = block(x, rope[:5].unsqueeze(0), mask, kept.block_store(0, slice(1), 0))
        step, branch = block.step(x[0, :1], None, kept.rows(0), CachePositions(one, one, 6, rope[one], None))
        outs.append((block_out, step if branch is None else step + branch))

    bound = {"rtol": 2**-5, "atol": 2**-5} if dtype == torch.int8 else {}  # a CPU multiplies int8 in bf16
    torch.testing.assert_close(*[block_out for block_out, _ in outs], **bound)
    torch.testing.assert_close(*[step for _, step in outs], **bound)


def test_merged_weights_are_in_memory_once() -> None:
    block, _ = pair(torch.int8)
    feed = block.feed_forward

    assert isinstance(feed, FeedForward)
    assert isinstance(feed.both, QuantizedWeight)
    assert feed.w1.values.data_ptr() == feed.both.values.data_ptr()
    assert torch.equal(torch.cat((feed.w1.scale, feed.w3.scale)), feed.both.scale)


def test_norms_stay_as_they_were_trained() -> None:
    block, _ = pair(torch.int8)

    assert block.attention_norm.weight.dtype == torch.float32
    assert not any(isinstance(module, nn.Linear) for module in block.modules())


def test_an_fp8_cache_returns_its_values_in_the_format_of_the_query() -> None:
    narrow, key = cache(torch.float8_e4m3fn), torch.randn(1, 2, 3, 16) * 1000

    keys, values = narrow.block_store(0, slice(1), 0)(key, key / 1000)
    saved = narrow.save(0, 3)
    narrow.load(1, saved, writes := Writes(torch.device("cpu")))
    writes.run()

    assert narrow.keys.nbytes * 4 == cache().keys.nbytes
    assert keys.dtype == torch.float32
    assert keys.abs().max() == 448
    torch.testing.assert_close(values, key / 1000, rtol=1 / 16, atol=2**-10)
    assert saved[0].dtype == torch.float8_e4m3fn
    assert torch.equal(narrow.keys[:, 1, :, :3].float(), keys)
