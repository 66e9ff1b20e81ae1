"""The codec of Qwen3-TTS matches transformers' models of the same layers, and streams exactly."""

from __future__ import annotations

import copy
import math
from collections.abc import Iterator, Mapping
from functools import cache
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from transformers import MimiConfig, MimiModel
from transformers.models.qwen3_omni_moe.configuration_qwen3_omni_moe import Qwen3OmniMoeCode2WavConfig
from transformers.models.qwen3_omni_moe.modeling_qwen3_omni_moe import Qwen3OmniMoeCode2Wav

from kernel_checks import needs_gpu
from s1_mini.codecs.causal.channels_last import ChannelsLastDecoder
from s1_mini.codecs.causal.costs import codec_operations, stream_bytes
from s1_mini.codecs.causal.stage import CausalDecoder
from s1_mini.codecs.qwen12.config import Qwen12Config
from s1_mini.codecs.qwen12.encoder import Encoder
from s1_mini.codecs.qwen12.model import Qwen12
from s1_mini.codecs.qwen12.random import PUBLISHED, TINY, TINY_BOOKS, random_tensors
from s1_mini.codecs.qwen12.weights import build_decoder, build_encoder, decoder_shapes, encoder_shapes
from s1_mini.codecs.stream_state import StreamState
from s1_mini.core.messages import Begin, Conditions
from s1_mini.core.stage import Chunks, Spec
from s1_mini.exceptions import CapacityError, CheckpointMismatchError
from s1_mini.types import SamplingParams
from s1_mini.weights.fit import skeleton

if TYPE_CHECKING:
    from s1_mini.codecs.causal.compiled import CompiledStreams

pytestmark = pytest.mark.usefixtures("no_grad")

CPU, RATE, BOOKS = torch.device("cpu"), 1920, TINY_BOOKS
CONFIG = Qwen12Config.from_json(TINY)
CHUNKS = (1, 2, 3, 5, 13)


@cache
def tensors(seed: int = 0) -> Mapping[str, Tensor]:
    return random_tensors(CONFIG, seed)


def decoder_of(named: Mapping[str, Tensor]) -> Qwen12:
    return build_decoder(CONFIG, named, dtype=torch.float32, device=CPU, source="test")


@cache
def decoder(seed: int = 0) -> Qwen12:
    return decoder_of(tensors(seed))


@cache
def encoder() -> Encoder:
    return build_encoder(CONFIG, tensors(), device=CPU, source="test")


def random_codes(frames: int, rows: int = 1, seed: int = 0) -> Tensor:
    return torch.randint(0, 64, (rows, BOOKS, frames), generator=torch.Generator().manual_seed(seed))


def noise(samples: int) -> Tensor:
    return 0.1 * torch.randn(samples, generator=torch.Generator().manual_seed(samples))


def code2wav(named: Mapping[str, Tensor], hidden: int) -> Qwen3OmniMoeCode2Wav:
    """Build transformers' decoder with all tensors whose shapes fit a width."""
    sizes = {key: value for key, value in TINY["decoder_config"].items() if key != "hidden_size"}
    config = Qwen3OmniMoeCode2WavConfig(hidden_size=hidden, **sizes)
    config.head_dim = sizes["head_dim"]
    model = Qwen3OmniMoeCode2Wav._from_config(config, attn_implementation="eager").eval()
    own = model.state_dict()
    ours = {name.removeprefix("decoder."): each for name, each in named.items()}
    fitting = {name: ours[name] for name in own if name in ours and own[name].shape == ours[name].shape}
    assert len(fitting) > 10
    model.load_state_dict(fitting, strict=False)
    for module in model.modules():
        if hasattr(module, "left_pad"):
            module.left_pad = 0  # this codec cuts only the end of a transposed convolution
    return model


def decode_plainly(named: Mapping[str, Tensor], codes: Tensor) -> Tensor:
    """Decode codes [B, K, F] to samples [B, T] with transformers' layers, and plain ones around its transformer."""

    def vectors(part: str, codes: Tensor) -> Tensor:
        stem = f"decoder.quantizer.{part}."
        books = [f"{stem}vq.layers.{book}._codebook." for book in range(codes.shape[1])]
        tables = [named[f"{book}embedding_sum"] / named[f"{book}cluster_usage"][:, None] for book in books]
        total = torch.stack([table[codes[:, book]] for book, table in enumerate(tables)]).sum(0)
        return F.conv1d(total.transpose(1, 2), named[f"{stem}output_proj.weight"])

    def linear(name: str, x: Tensor) -> Tensor:
        return F.linear(x, named[f"decoder.{name}.weight"], named[f"decoder.{name}.bias"])

    x = vectors("rvq_first", codes[:, :1]) + vectors("rvq_rest", codes[:, 1:])
    x = F.conv1d(F.pad(x, (2, 0)), named["decoder.pre_conv.conv.weight"], named["decoder.pre_conv.conv.bias"])
    x = linear("pre_transformer.input_proj", x.transpose(1, 2))
    x = code2wav(named, CONFIG.decoder.hidden_size).pre_transformer(inputs_embeds=x).last_hidden_state
    x = linear("pre_transformer.output_proj", x).transpose(1, 2)
    model = code2wav(named, CONFIG.decoder.latent_dim)
    for block in [*(each for pair in model.upsample for each in pair), *model.decoder]:
        x = block(x)
    return x.clamp(-1, 1).squeeze(1)


def in_chunks(codes: Tensor, size: int) -> Tensor:
    stream = decoder().open(len(codes))
    return torch.cat([stream.push(part) for part in codes.split(size, dim=-1)], dim=-1)


@pytest.mark.parametrize("seed", [0, 1])
def test_decoding_gives_what_transformers_gives(seed: int) -> None:
    codes = random_codes(40, rows=2, seed=seed)

    heard = decoder(seed).decode(codes)

    assert heard.shape == (2, 40 * RATE)
    assert 0.05 < heard.std() < 0.5
    assert (heard - decode_plainly(tensors(seed), codes)).abs().max() <= 2e-5


def test_speech_beyond_24_seconds_has_no_seam() -> None:
    """The original decodes pieces of 300 frames; ours gives what one pass over all frames gives."""
    codes = random_codes(310)

    assert (decoder().decode(codes) - decode_plainly(tensors(), codes)).abs().max() <= 5e-5


@pytest.mark.parametrize("size", CHUNKS)
def test_a_stream_in_chunks_gives_the_samples_of_the_whole(size: int) -> None:
    codes = random_codes(40)

    assert (in_chunks(codes, size) - decoder().open(1).push(codes)).abs().max() <= 2e-5


@pytest.mark.parametrize("chained", [False, True])
@pytest.mark.parametrize("size", CHUNKS)
def test_the_decoder_for_gpus_gives_the_same_samples(size: int, chained: bool) -> None:
    codes = random_codes(30, rows=2)
    stream, slots = ChannelsLastDecoder(decoder(), 4, chained=chained), torch.tensor([3, 1])

    parts = [
        stream.push_slots(part, slots, torch.full((2,), at == 0)) for at, part in enumerate(codes.split(size, dim=-1))
    ]

    assert (torch.cat(parts, dim=-1) - decoder().decode(codes)).abs().max() <= 2e-5


def test_rows_of_a_batch_are_independent() -> None:
    codes = random_codes(20, rows=3)

    together = decoder().decode(codes)

    for row in range(3):
        assert (together[row] - decoder().decode(codes[row : row + 1])[0]).abs().max() <= 2e-5


def test_samples_are_clamped_and_codes_too() -> None:
    loud = dict(tensors())
    loud["decoder.decoder.6.conv.weight"] = 100 * loud["decoder.decoder.6.conv.weight"]
    high = random_codes(4)
    high[:, 3] = 1000

    heard = decoder_of(loud).decode(random_codes(4))

    assert heard.abs().max() == 1
    assert torch.equal(decoder().decode(high), decoder().decode(high.clamp(max=63)))


def test_a_stream_longer_than_the_codec_reaches_is_refused() -> None:
    with pytest.raises(CapacityError, match=r"8001 frames \(640 s\) exceed the codec's limit of 8000"):
        decoder().open(1).push(torch.zeros(1, BOOKS, 8001, dtype=torch.int64))


# ---- the stage ------------------------------------------------------------------------------------------------------


def stage_of(codec: Qwen12 | None = None, *, captured: bool) -> CausalDecoder:
    policy = Chunks(
        name="codec",
        input=Spec("int64", (BOOKS,)),
        output=Spec("float32"),
        slots=3,
        sizes={"ttfa": (1, 2, 4)},
        rows=(1, 2) if captured else (1,),
        max_items=64,
    )
    stage = CausalDecoder(codec or decoder(), policy, number=1, reference="codes")
    if captured:
        stage.make_graphs()
    return stage


def speak(stage: CausalDecoder, slot: int, codes: Tensor, voice: Mapping[str, Any]) -> Iterator[np.ndarray]:
    """Decode codes [K, F] in chunks of up to four frames."""
    conditions, made = Conditions(SamplingParams(), seed=0, utterance=0, max_steps=99, voice=voice), 0
    for number, part in enumerate(codes.T.numpy()[at : at + 4] for at in range(0, codes.shape[1], 4)):
        stage.begin([Begin(slot, number, part, None, made * RATE, 1, 4, 0, len(part), conditions)])
        result = stage.step([slot], 4)()
        yield result.values[0][: result.counts[0]]
        made += len(part)


captures = pytest.mark.parametrize("captured", [False, True])


@captures
@pytest.mark.parametrize("frames", [1, 7, 25, 70])
def test_speech_continues_the_reference_of_its_voice(captured: bool, frames: int) -> None:
    stage, reference, codes = stage_of(captured=captured), random_codes(frames, seed=5)[0], random_codes(9)[0]
    expected = decoder().decode(torch.cat((reference, codes), dim=1)[None])[0, frames * RATE :].numpy()
    voice = {"codes": reference.numpy()}

    first = np.concatenate(list(speak(stage, 0, codes, voice)))
    in_between = np.concatenate(list(speak(stage, 1, codes, {})))
    second = np.concatenate(list(speak(stage, 1, codes, voice)))

    np.testing.assert_allclose(first, expected, atol=3e-5)
    np.testing.assert_array_equal(second, first)
    np.testing.assert_allclose(in_between, decoder().decode(codes[None])[0].numpy(), atol=3e-5)


@captures
def test_the_state_after_a_reference_is_computed_once_for_a_voice(
    captured: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    stage, voice = stage_of(captured=captured), {"codes": random_codes(7)[0].numpy()}
    list(speak(stage, 0, random_codes(2)[0], voice))
    calls: list[int] = []
    monkeypatch.setattr(stage, "_feed", lambda *_: calls.append(0))
    monkeypatch.setattr(stage._stream, "skip", lambda *_: calls.append(0))

    list(speak(stage, 2, random_codes(2)[0], voice))
    assert not calls
    list(speak(stage, 2, random_codes(2)[0], {"codes": random_codes(8)[0].numpy()}))

    assert len(calls) == 1


@captures
def test_a_voice_without_codes_begins_afresh(captured: bool) -> None:
    stage, codes = stage_of(captured=captured), random_codes(3)[0]
    list(speak(stage, 0, random_codes(5, seed=1)[0], {"codes": random_codes(7)[0].numpy()}))

    heard = np.concatenate(list(speak(stage, 0, codes, {"codes": np.zeros((BOOKS, 0), np.int64)})))

    np.testing.assert_allclose(heard, decoder().decode(codes[None])[0].numpy(), atol=2e-5)


def test_a_reference_counts_towards_the_longest_stream() -> None:
    voice = {"codes": np.zeros((BOOKS, 7998), np.int64)}
    with pytest.raises(CapacityError, match="8001 frames"):
        next(speak(stage_of(captured=False), 0, random_codes(3)[0], voice))


def compiled_streams() -> CompiledStreams:
    pytest.importorskip("numba", reason="numba has no wheels for this platform")
    from s1_mini.codecs.causal.compiled import CompiledStreams

    return CompiledStreams(decoder(), 2)


@pytest.fixture
def in_float32(monkeypatch: pytest.MonkeyPatch) -> None:
    """Compiled convolutions do not use int16, which is less exact."""
    compiled = pytest.importorskip("s1_mini.codecs.causal.compiled", reason="numba has no wheels for this platform")
    monkeypatch.setattr(compiled, "HAS_VNNI", False)


def test_compiled_streams_have_torchs_samples_and_the_same_bits_in_any_chunks(*, in_int16: bool) -> None:
    streams, codes = compiled_streams(), random_codes(13)
    whole = streams.push(codes, [0])

    streams.reset(0)
    for cuts in ([1] * 13, [2, 3, 8]):
        chunks = []
        for part in codes.split(cuts, dim=-1):
            streams.push(random_codes(2, seed=9), [0])
            chunks.append(streams.push(part, [1]))
        streams.reset(1)
        assert torch.equal(torch.cat(chunks, dim=-1), whole)

    expected = decoder().decode(codes)
    if in_int16:
        error = float((whole - expected).square().mean() / expected.square().mean())
        assert error < 10**-5.5  # 55 dB
    else:
        torch.testing.assert_close(whole, expected, rtol=0, atol=2e-5)
    assert any(each.startswith("convolve_int16") for each in streams.formats) == in_int16


@pytest.mark.usefixtures("in_float32")
def test_a_compiled_stream_continues_after_skipped_frames_and_from_a_saved_state() -> None:
    streams, codes = compiled_streams(), random_codes(70)
    streams.skip(0, codes[0, :, :60])
    streams.load(1, streams.save(0))

    rest = [streams.push(codes[..., 60:], [row]) for row in (0, 1)]

    torch.testing.assert_close(rest[0], decoder().decode(codes)[:, 60 * RATE :], rtol=0, atol=3e-5)
    assert torch.equal(rest[0], rest[1])


@pytest.mark.usefixtures("in_float32")
def test_a_compiled_stage_continues_the_reference_of_its_voice() -> None:
    pytest.importorskip("numba", reason="numba has no wheels for this platform")
    stage, reference, codes = stage_of(captured=False), random_codes(7, seed=5)[0], random_codes(9)[0]
    voice = {"codes": reference.numpy()}
    plain = np.concatenate(list(speak(stage, 0, codes, voice)))
    work = stage.compilable()
    assert work is not None
    work.use()

    compiled, cached = (np.concatenate(list(speak(stage, slot, codes, voice))) for slot in (1, 2))

    np.testing.assert_allclose(compiled, plain, atol=3e-5)
    np.testing.assert_array_equal(compiled, cached)
    assert not np.array_equal(compiled, plain), "both round alike, so this shows nothing"


@needs_gpu[0]
@needs_gpu[1]
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 1e-3), (torch.float16, 3e-2)])
def test_a_gpu_gives_the_samples_of_a_cpu(
    dtype: torch.dtype, tolerance: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In float16 with the chain of fused convolutions, if the GPU supports it."""
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", False)
    config = Qwen12Config.from_json(changed("decoder_config.decoder_dim", 512))
    named = random_tensors(config)
    codec, plain = (
        build_decoder(config, named, dtype=each, device=device, source="test")
        for each, device in ((dtype, torch.device("cuda")), (torch.float32, CPU))
    )
    stage = stage_of(codec, captured=True)
    reference, codes = random_codes(30, seed=5)[0], random_codes(40)[0]
    expected = plain.decode(torch.cat((reference, codes), dim=1)[None])[0, 30 * RATE :].numpy()

    for slot in (0, 1):
        heard = np.concatenate(list(speak(stage, slot, codes, {"codes": reference.numpy()})))
        assert np.abs(heard - expected).max() <= tolerance
    alone = np.concatenate(list(speak(stage, 0, codes, {})))
    assert np.abs(alone - plain.decode(codes[None])[0].numpy()).max() <= tolerance


def test_the_published_size_has_the_costs_of_its_shapes() -> None:
    config = Qwen12Config.from_json(PUBLISHED)
    codec = skeleton(lambda: Qwen12(config))

    # As published, without the projections and marks that only train.
    sizes = [sum(math.prod(shape) for shape in shapes(config).values()) for shapes in (decoder_shapes, encoder_shapes)]
    assert sizes == [114_323_137 - 2 * 256 * 512, 56_234_304 - 2 * 256 * 512 - 32]
    assert codec_operations(codec) == pytest.approx(4.96e9, rel=0.01)
    assert stream_bytes(codec) == pytest.approx(4 * (8 * 71 * 2 * 1024 + 134_000), rel=0.01)


def test_the_counted_state_of_a_stream_is_what_a_stream_allocates() -> None:
    state = StreamState()

    decoder().push(random_codes(1), state)

    assert stream_bytes(decoder()) == sum(part.nbytes for part in state.save(0))


# ---- the encoder ----------------------------------------------------------------------------------------------------


@cache
def mimi() -> MimiModel:
    """Transformers' encoder; its window is longer than all waves, because the original's is not applied."""
    sizes = {key: value for key, value in TINY["encoder_config"].items() if key != "num_residual_layers"}
    config = MimiConfig(
        **sizes | {"sliding_window": 10_000}, vector_quantization_hidden_dimension=8, upsample_groups=16
    )
    model = MimiModel._from_config(config, attn_implementation="eager").eval()
    ours = {name.removeprefix("encoder."): each for name, each in tensors().items() if name.startswith("encoder.")}
    faults = model.load_state_dict(ours, strict=False)
    assert not faults.unexpected_keys
    assert not [name for name in faults.missing_keys if name.startswith(("encoder", "downsample"))]
    return model


@pytest.mark.parametrize("samples", [1920, 1921, 12_000, 31_277, 244_801])
def test_encoding_gives_the_codes_that_transformers_gives_at_any_length(samples: int) -> None:
    wave = noise(samples)

    codes = encoder().encode(wave)

    assert codes.shape == (BOOKS, -(-samples // RATE))
    assert torch.equal(codes, mimi().encode(wave.view(1, 1, -1), num_quantizers=BOOKS).audio_codes[0])


def test_a_long_reference_is_encoded_in_blocks_of_two_seconds_on_a_cpu() -> None:
    blocks = list(encoder().encode_by_blocks(noise(25 * 24_000)))

    assert len(blocks) == 13 + CONFIG.encoder.num_hidden_layers


def test_a_reference_that_is_too_long_is_refused() -> None:
    with pytest.raises(CapacityError, match=r"a reference of 321 s exceeds the codec's limit of 320 s"):
        encoder().encode(torch.zeros(321 * 24_000))


# ---- checkpoints ----------------------------------------------------------------------------------------------------


def changed(path: str, value: Any) -> dict[str, Any]:
    config, keys = copy.deepcopy(TINY), path.split(".")
    part = config
    for key in keys[:-1]:
        part = part[key]
    part[keys[-1]] = value
    return config


def test_the_published_config_is_read() -> None:
    config = Qwen12Config.from_json(PUBLISHED)

    assert (config.sample_rate, config.samples_per_frame, config.num_codebooks) == (24_000, 1920, 16)
    assert config.sample_rate / config.samples_per_frame == 12.5


@pytest.mark.parametrize(
    ("path", "value", "message"),
    [
        ("model_type", "qwen3_tts_tokenizer_25hz", r"model_type='qwen3_tts_tokenizer_25hz' .* 25 Hz .* not supported"),
        ("decoder_config", None, r"decoder_config=None must be an object"),
        ("decoder_config.head_dim", None, r"head_dim=None must be a positive integer"),
        ("decoder_config.head_dim", 5, r"head_dim=5 must be even"),
        ("decoder_config.num_key_value_heads", 3, r"must be a multiple of num_key_value_heads=3"),
        ("decoder_config.rms_norm_eps", "small", r"rms_norm_eps='small' must be a positive number"),
        ("decoder_config.num_semantic_quantizers", 2, r"num_semantic_quantizers=2 is not supported"),
        ("decoder_config.upsample_rates", [8, 5, 4], r"decode_upsample_rate=1920 must be the product"),
        ("decoder_config.decoder_dim", 40, r"decoder_dim=40 a multiple of 16"),
        ("encoder_config.pad_mode", "reflect", r"pad_mode='reflect' is not supported; it must be constant"),
        ("encoder_config.num_quantizers", 4, r"has 4 codebooks .* needs at least 6 with 64 entries each"),
        ("encoder_valid_num_quantizers", 8, r"encoder_valid_num_quantizers=8 must be 6"),
        ("input_sample_rate", 16_000, r"input_sample_rate=16000 must be 24000"),
    ],
)
def test_an_invalid_config_is_refused_with_what_is_allowed(path: str, value: Any, message: str) -> None:
    with pytest.raises(CheckpointMismatchError, match=r"^speech_tokenizer/config\.json: .*" + message):
        Qwen12Config.from_json(changed(path, value))


def test_weights_that_do_not_fit_are_named() -> None:
    name = "decoder.pre_transformer.layers.1.self_attn.k_proj.weight"
    lacking = {each: tensor for each, tensor in tensors().items() if each != name}

    with pytest.raises(CheckpointMismatchError, match=rf"{name} is missing"):
        decoder_of(lacking)
    with pytest.raises(CheckpointMismatchError, match=rf"{name} \(2, 2\), expected \(24, 16\) is misshapen"):
        decoder_of(lacking | {name: torch.zeros(2, 2)})
    with pytest.raises(CheckpointMismatchError, match=r"more is not part of this architecture"):
        decoder_of(tensors() | {"more": torch.zeros(1)})


def test_a_fault_of_the_encoder_is_found_when_the_decoder_is_opened() -> None:
    with pytest.raises(CheckpointMismatchError, match=r"encoder\.downsample\.conv\.weight is missing"):
        decoder_of({name: each for name, each in tensors().items() if "downsample" not in name})


def test_a_decoder_for_another_process_has_no_weights() -> None:
    codec = build_decoder(CONFIG, tensors(), dtype=torch.float16, device=torch.device("meta"), source="test")

    assert all(weight.is_meta for weight in codec.parameters())
    assert codec.sample_rate == 24_000


def test_weights_without_an_encoder_decode_only() -> None:
    only = {name: each for name, each in tensors().items() if name.startswith("decoder.")}

    assert torch.equal(decoder_of(only).decode(random_codes(2)), decoder().decode(random_codes(2)))
    with pytest.raises(CheckpointMismatchError, match="test has no encoder weights, so it cannot encode a reference"):
        build_encoder(CONFIG, only, device=CPU, source="test")
