"""Open a checkpoint directory: family and codec are introduced to each other here and nowhere else."""

from __future__ import annotations

import logging
import threading
from dataclasses import dataclass, field
from pathlib import Path

import torch

from s1_mini.codecs.dac.channels_last import ChannelsLastDecoder
from s1_mini.codecs.dac.config import DacConfig
from s1_mini.codecs.dac.model import Dac
from s1_mini.codecs.dac.weights import open_dac, read_dac_config
from s1_mini.config import EngineConfig, Heads, KVFormat, Precision, RepetitionMode, WeightFormat
from s1_mini.exceptions import CheckpointMismatchError, CheckpointNotFoundError, ConfigurationError
from s1_mini.families.registry import find_family
from s1_mini.families.s1.model import S1Model
from s1_mini.layers.transformer import TransformerBlock
from s1_mini.runtime.compilation import Compiler, choose_backend
from s1_mini.types import Choice
from s1_mini.voices.library import VoiceLibrary
from s1_mini.weights.files import read_json

logger = logging.getLogger(__name__)

NARROW = {"int8": torch.int8, "fp8": torch.float8_e4m3fn}
FP8_CAPABILITY = (8, 9)  # Ada and Hopper have instructions for e4m3

DEFAULT_MODEL = Path(__file__).parents[1] / "default_model"

_NO_VOICE = "No voice to speak with: no checkpoint was named, and this installation lacks the one that ships with it."
_WAY_OUT = """Name one's directory with --checkpoint, S1_MINI_CHECKPOINT_PATH or EngineConfig(checkpoint_path=...).
S1-mini itself: fishaudio/openaudio-s1-mini on the Hugging Face hub (gated, CC-BY-NC-SA-4.0, non-commercial)."""


FULL = Choice("full", "as `precision` says; nothing narrower was asked for")


@dataclass
class Speaker:
    """A loaded checkpoint: the model, the codec that goes with it, and how both were placed."""

    directory: Path
    model: S1Model
    codec: Dac
    device: Choice
    precision: Choice
    codec_dtype: Choice
    weights_dtype: Choice
    kv_dtype: Choice
    compiler: Compiler
    voices: VoiceLibrary
    _encoder: Dac | None = None
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def open_decoder(self, rows: int) -> ChannelsLastDecoder:
        """Begin `rows` streams of the codec that a CUDA graph can be made of."""
        return ChannelsLastDecoder(self.codec, rows)

    def encoding_codec(self) -> Dac:
        """Give a codec that can encode; its encoding half is only loaded when the first reference comes."""
        with self._lock:
            if self._encoder is None:
                encoder = open_dac(self.directory, encodes=True, device=torch.device(self.device.value))
                encoder.share_decoding(self.codec)
                self._encoder = encoder
            return self._encoder


def find_checkpoint(path: Path | None) -> Path:
    """Give the checkpoint directory to use. Raises `CheckpointNotFoundError`."""
    if path is None:
        if not (DEFAULT_MODEL / "config.json").is_file():
            raise CheckpointNotFoundError(f"{_NO_VOICE}\n{_WAY_OUT}")
        return DEFAULT_MODEL
    if not path.is_dir():
        kind = "a file, not a directory" if path.exists() else "no directory"
        raise CheckpointNotFoundError(f"checkpoint {path} is {kind}.\n{_WAY_OUT}")
    return path


def load(config: EngineConfig) -> Speaker:
    """Load what `config` names. Raises `CheckpointError` or `ConfigurationError`."""
    directory = find_checkpoint(config.checkpoint_path)
    device = choose_device(config.device)
    precision = choose_precision(config.precision, device.value)
    codec_dtype = choose_codec_dtype(config.codec_dtype, device.value)
    weights_dtype = choose_weights_dtype(config.weights_dtype, device.value)
    kv_dtype = choose_kv_dtype(config.kv_dtype, device.value)
    speaker = open_checkpoint(
        directory,
        device=device,
        precision=precision,
        codec_dtype=codec_dtype,
        weights_dtype=weights_dtype,
        kv_dtype=kv_dtype,
        heads=config.heads,
        repetition_mode=config.repetition_mode,
    )
    choice = choose_backend(config.compile, config.compile_backend, device=torch.device(device.value).type)
    speaker.compiler = Compiler(choice)
    _compile_blocks(speaker)
    for name, chosen in (
        ("device", device),
        ("precision", precision),
        ("codec_dtype", codec_dtype),
        ("weights_dtype", weights_dtype),
        ("kv_dtype", kv_dtype),
        ("compile", choice),
    ):
        logger.info("%s: %s (%s)", name, chosen.value, chosen.reason)
    return speaker


def open_checkpoint(
    directory: Path,
    *,
    device: Choice,
    precision: Choice,
    codec_dtype: Choice | None = None,
    weights_dtype: Choice = FULL,
    kv_dtype: Choice = FULL,
    heads: Heads,
    repetition_mode: RepetitionMode,
) -> Speaker:
    """Open model and codec, uncompiled. Raises `CheckpointError`."""
    codec_config = read_dac_config(directory)
    open_family = find_family(read_json(directory / "config.json"))
    target = torch.device(device.value)
    model = open_family(
        directory,
        heads=heads,
        repetition_mode=repetition_mode,
        residual_codes=codec_config.codebook_size,
        dtype=getattr(torch, precision.value),
        device=target,
        weights_dtype=NARROW.get(weights_dtype.value),
        kv_dtype=NARROW.get(kv_dtype.value),
    )
    _check_pair(model, codec_config)
    codec_dtype = codec_dtype or Choice("float32", "not asked for")
    codec = open_dac(directory, encodes=False, dtype=getattr(torch, codec_dtype.value), device=target)
    compiler = Compiler(Choice("off", "not asked for"))
    return Speaker(
        directory=directory,
        model=model,
        codec=codec,
        device=device,
        precision=precision,
        codec_dtype=codec_dtype,
        weights_dtype=weights_dtype,
        kv_dtype=kv_dtype,
        compiler=compiler,
        voices=VoiceLibrary.open(directory),
    )


def _check_pair(model: S1Model, codec: DacConfig) -> None:
    """Every code of the codec must mean something to the model. Raises `CheckpointMismatchError`."""
    num_semantic = model.tokenizer.semantic_end - model.tokenizer.semantic_begin + 1
    if model.num_codebooks != codec.num_codebooks:
        raise CheckpointMismatchError(
            f"config.json has num_codebooks={model.num_codebooks}; the codec has {codec.num_codebooks}"
        )
    if codec.semantic_codebook_size != num_semantic or codec.codebook_size > model.network.config.codebook_size:
        raise CheckpointMismatchError(
            f"the codec's books have {codec.semantic_codebook_size} and {codec.codebook_size} entries; the model has "
            f"{num_semantic} semantic tokens and {model.network.config.codebook_size} codes"
        )


def choose_device(setting: str) -> Choice:
    """Choose where to run. Raises `ConfigurationError` for a device that is not there."""
    cuda = torch.cuda.is_available()
    if setting == "auto":
        if cuda:
            return Choice("cuda", f"found {torch.cuda.get_device_name()}")
        return Choice("cpu", "no CUDA device was found")
    if setting.startswith("cuda"):
        index = int(setting.partition(":")[2] or 0)
        if not cuda or index >= torch.cuda.device_count():
            raise ConfigurationError(f"device={setting!r}: this machine has {torch.cuda.device_count()} CUDA devices")
    if setting == "mps" and not torch.backends.mps.is_available():
        raise ConfigurationError("device='mps': this machine has no Metal device; use auto or cpu")
    return Choice(setting, "named by the settings")


def choose_precision(setting: Precision, device: str) -> Choice:
    """Choose the model's number format."""
    if setting != "auto":
        return Choice(setting, "named by the settings")
    if not device.startswith("cuda"):
        return Choice("float32", f"half precision is not faster on {device}")
    if torch.cuda.is_bf16_supported(including_emulation=False):
        return Choice("bfloat16", "the published precision, and this GPU has it")
    return Choice("float16", "this GPU has no bfloat16")


def choose_codec_dtype(setting: Precision, device: str) -> Choice:
    """Choose the number format of decoding; references are encoded in float32 as upstream does it."""
    if setting != "auto":
        return Choice(setting, "named by the settings")
    if not device.startswith("cuda"):
        return Choice("float32", f"half precision is not faster on {device}")
    # 58 dB of signal to noise against float32 with the voice that ships; bfloat16 leaves 40 (2026-11).
    return Choice("float16", "half the bytes of float32, and its sound")


def choose_weights_dtype(setting: WeightFormat, device: str) -> Choice:
    """Choose the format of the slow layers' weights: int8 where fp8 was asked for and is not there."""
    if setting == "full":
        return FULL
    lack = _lack_of_fp8(device)
    if setting == "fp8" and lack:
        return Choice("int8", f"fp8 was asked for, but {lack}; int8 has as few bytes")
    return Choice(setting, "named by the settings")


def choose_kv_dtype(setting: KVFormat, device: str) -> Choice:
    """Choose the format of the slow layers' keys and values. A CPU widens fp8 again at every step."""
    if setting == "full":
        return FULL
    lack = "" if device == "cpu" else _lack_of_fp8(device)
    return Choice("full", f"fp8 was asked for, but {lack}") if lack else Choice(setting, "named by the settings")


def _lack_of_fp8(device: str) -> str:
    """Why a device cannot multiply what is kept in fp8; empty if it can."""
    if not device.startswith("cuda"):
        return f"{device} has no fp8"
    capability = torch.cuda.get_device_capability(device)
    if capability < FP8_CAPABILITY:
        return "this GPU has compute capability {}.{}, and fp8 needs {}.{}".format(*capability, *FP8_CAPABILITY)
    return ""


def _compile_blocks(speaker: Speaker) -> None:
    if speaker.compiler.choice.value != "inductor":
        return
    for module in speaker.model.network.modules():
        if isinstance(module, TransformerBlock):
            module.feed = speaker.compiler(module.feed)  # type: ignore[method-assign]
