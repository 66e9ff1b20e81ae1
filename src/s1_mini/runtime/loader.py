"""Open a checkpoint directory: where and in which number formats is chosen here, how is its family's to know."""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

import torch

from s1_mini.capacity.sizes import Formats, Sizes
from s1_mini.config import EngineConfig, KVFormat, Precision, WeightFormat
from s1_mini.exceptions import ConfigurationError
from s1_mini.families.base import Description, Family, LoadedModel, Placement
from s1_mini.families.registry import family_of
from s1_mini.kernels.backend import HAS_TRITON, leave_triton
from s1_mini.kernels.gate import gate
from s1_mini.kernels.weight import product, quantize
from s1_mini.layers.transformer import TransformerBlock
from s1_mini.runtime.compilation import Compiler, choose_backend
from s1_mini.runtime.room import check_weights, free_bytes_of, gpus_of
from s1_mini.text.form import TextForm
from s1_mini.types import Choice
from s1_mini.voices.library import CheckpointVoices
from s1_mini.weights.directory import DEFAULT_MODEL, read_json
from s1_mini.weights.origin import Origin, origin_of

logger = logging.getLogger(__name__)

NARROW = {"int8": torch.int8, "fp8": torch.float8_e4m3fn}
FP8_CAPABILITY = (8, 9)  # Ada and Hopper have instructions for e4m3

ELSEWHERE = Choice("elsewhere", "the stage works in another process")
NO_MEMORY = "meta"  # torch's device of tensors that have shapes and no values

FULL = Choice("full", "as `precision` says; nothing narrower was asked for")


@dataclass
class LoadedCheckpoint:
    """A loaded checkpoint: what speaks, and how it was placed."""

    directory: Path
    origin: Origin | None
    family: str  # its title
    description: Description
    loaded: LoadedModel
    device: Choice
    devices: Mapping[str, Choice]  # of each stage, by its name
    precision: Choice
    codec_dtype: Choice
    weights_dtype: Choice
    kv_dtype: Choice
    kernels: Choice
    batch_invariance: Choice
    compiler: Compiler
    voices: CheckpointVoices
    text: TextForm

    def sizes(self, prefix_cache_bytes: int) -> Sizes:
        """Count the memory of the checkpoint in the formats in which it was loaded."""
        formats = formats_of(self.precision, self.codec_dtype, self.weights_dtype, self.kv_dtype)
        return family_of(self.directory).sizes(self.directory, formats, prefix_cache_bytes)


def load(config: EngineConfig, here: Collection[str] | None = None) -> LoadedCheckpoint:
    """Load the checkpoint directory that `config` names. Raises `CheckpointError` or `ConfigurationError`.

    `here` limits the stages to those with these names; weights of the others are checked but not read.
    """
    directory = config.checkpoint_path or DEFAULT_MODEL
    device = choose_device(config.device)
    precision = choose_precision(config.precision, device.value)
    family = family_of(directory)
    devices = choose_devices(config.placement, family, device)
    codec_dtype = choose_codec_dtype(config.codec_dtype, devices[family.stage_names[-1]].value)
    if here is not None:
        devices = {stage: choice if stage in here else ELSEWHERE for stage, choice in devices.items()}
    weights_dtype = try_products(choose_weights_dtype(config.weights_dtype, device.value), device.value)
    kv_dtype = choose_kv_dtype(config.kv_dtype, device.value)
    if config.placement:
        stages = gpus_of({stage: choice.value for stage, choice in devices.items()})
        formats = formats_of(precision, codec_dtype, weights_dtype, kv_dtype)
        check_weights(family.sizes(directory, formats, 0), stages, {gpu: free_bytes_of(gpu) for gpu in stages})
    speaker = open_checkpoint(
        directory,
        device=device,
        devices=devices,
        precision=precision,
        codec_dtype=codec_dtype,
        weights_dtype=weights_dtype,
        kv_dtype=kv_dtype,
        settings=config,
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
        ("kernels", speaker.kernels),
        ("batch_invariance", speaker.batch_invariance),
        ("compile", speaker.compiler.choice),
    ):
        logger.info("%s: %s (%s)", name, chosen.value, chosen.reason)
    return speaker


def open_checkpoint(
    directory: Path,
    *,
    device: Choice,
    devices: Mapping[str, Choice] = MappingProxyType({}),
    precision: Choice,
    codec_dtype: Choice | None = None,
    weights_dtype: Choice = FULL,
    kv_dtype: Choice = FULL,
    settings: Any,
) -> LoadedCheckpoint:
    """Open model and codec, uncompiled; `settings` has the fields of the family's. Raises `CheckpointError`."""
    family = family_of(directory)
    codec_dtype = codec_dtype or Choice("float32", "not asked for")
    kernels = choose_kernels(device.value)
    invariance = choose_batch_invariance(
        getattr(settings, "batch_invariance", None), family, device.value, kernels, precision.value
    )
    placement = Placement(
        torch.device(device.value),
        getattr(torch, precision.value),
        getattr(torch, codec_dtype.value),
        NARROW.get(weights_dtype.value),
        NARROW.get(kv_dtype.value),
        {stage: torch.device(NO_MEMORY if choice == ELSEWHERE else choice.value) for stage, choice in devices.items()},
        invariance.value == "on",
    )
    loaded = family.open(directory, placement, settings)
    description = family.describe(directory)
    return LoadedCheckpoint(
        directory=directory,
        origin=origin_of(directory),
        family=family.title,
        description=description,
        loaded=loaded,
        device=device,
        devices={stage: devices.get(stage, device) for stage in family.stage_names},
        precision=precision,
        codec_dtype=codec_dtype,
        weights_dtype=weights_dtype,
        kv_dtype=kv_dtype,
        kernels=kernels,
        batch_invariance=invariance,
        compiler=Compiler(Choice("off", "not asked for")),
        voices=CheckpointVoices.open(directory, description.voice),
        text=TextForm.from_config(read_json(directory / "config.json")),
    )


def choose_devices(placement: Mapping[str, str], family: Family, device: Choice) -> dict[str, Choice]:
    """Choose where each stage runs. Raises `ConfigurationError` for a stage or a device that is not there."""
    unknown = sorted(set(placement) - set(family.stage_names))
    if unknown:
        raise ConfigurationError(
            f"placement: {family.title} has no stage {', '.join(unknown)}; its stages are "
            f"{', '.join(family.stage_names)} (S1_MINI_PLACEMENT)"
        )
    return {
        stage: choose_device(placement[stage], f"placement: {stage}") if stage in placement else device
        for stage in family.stage_names
    }


def choose_device(setting: str, name: str = "device") -> Choice:
    """Choose where to run. Raises `ConfigurationError` for a device that is not there, by the setting's `name`."""
    cuda = torch.cuda.is_available()
    if setting == "auto":
        if cuda:
            return Choice("cuda", f"found {torch.cuda.get_device_name()}")
        return Choice("cpu", "no CUDA device was found")
    if setting.startswith("cuda"):
        index = int(setting.partition(":")[2] or 0)
        if not cuda or index >= torch.cuda.device_count():
            raise ConfigurationError(f"{name}={setting!r}: this machine has {torch.cuda.device_count()} CUDA devices")
    if setting == "mps" and not torch.backends.mps.is_available():
        raise ConfigurationError(f"{name}='mps': this machine has no Metal device; use auto or cpu")
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
    # 55 dB of signal to noise against float32 with the voice that ships; bfloat16 leaves 37 (2026-11).
    return Choice("float16", "half the bytes of float32, and its sound")


def choose_weights_dtype(setting: WeightFormat, device: str) -> Choice:
    """Choose the format of the weights of large products: int8 where fp8 was asked for and is not there."""
    if setting == "full":
        return FULL
    lack = _lack_of_fp8(device)
    if setting == "fp8" and lack:
        return Choice("int8", f"fp8 was asked for, but {lack}; int8 has as few bytes")
    return Choice(setting, "named by the settings")


def try_products(weights_dtype: Choice, device: str) -> Choice:
    """Give a format of weights as it is, or `full` where a small product by such weights fails."""
    if weights_dtype.value == "full":
        return weights_dtype
    try:
        weight = quantize(torch.eye(64, device=device), NARROW[weights_dtype.value])
        product(torch.ones(1, 64, device=device), weight)
    except (RuntimeError, NotImplementedError, AttributeError) as error:
        reason = str(error).strip().partition("\n")[0] or type(error).__name__
        return Choice("full", f"{device} cannot multiply by weights in {weights_dtype.value}: {reason}")
    return weights_dtype


def choose_kv_dtype(setting: KVFormat, device: str) -> Choice:
    """Choose the format of keys and values. A CPU widens fp8 again at every step."""
    if setting == "full":
        return FULL
    lack = "" if device == "cpu" else _lack_of_fp8(device)
    return Choice("full", f"fp8 was asked for, but {lack}") if lack else Choice(setting, "named by the settings")


def choose_kernels(device: str) -> Choice:
    """Choose `triton`, or `torch` where Triton is not there or cannot run the smallest of our kernels."""
    if not device.startswith("cuda"):
        return Choice("torch", f"Triton's kernels are for NVIDIA GPUs, and this is {device}")
    if not HAS_TRITON:
        return Choice("torch", "Triton is not installed; torch computes the same, with more kernels a step")
    try:
        _try_kernel(device)
    except torch.OutOfMemoryError:
        raise
    except Exception as error:  # what Triton, a compiler or a driver raises has no class in common
        leave_triton()
        told = str(error).strip().partition("\n")[0] or type(error).__name__
        logger.warning("Triton fails, torch computes from now on: %s", told)
        return Choice("torch", f"Triton fails: {told}")
    return Choice("triton", f"Triton is there for {device}")


def choose_batch_invariance(
    setting: str | None, family: Family, device: str, kernels: Choice, precision: str
) -> Choice:
    """Choose whether what a row gives must not depend on the rows beside it; `on` only where that can be kept."""
    if setting in (None, "off"):
        return Choice("off", "not asked for")
    if "batch_invariance" not in family.settings.model_fields:
        return Choice("off", f"asked for, but {family.title} does not offer it")
    if device == "cpu":
        return Choice("on", "on a CPU it always is")
    if kernels.value != "triton":
        return Choice("off", f"asked for, but only the project's own kernels keep one order: {kernels.reason}")
    if precision == "float32":
        return Choice("off", "asked for, but in float32 attention has no such order; S1_MINI_PRECISION=bfloat16 has")
    return Choice("on", "named by the settings")


def _try_kernel(device: str) -> None:
    gate(torch.ones(1, 32, device=device)).cpu()


def _lack_of_fp8(device: str) -> str:
    """Why a device cannot multiply what is kept in fp8; empty if it can."""
    if not device.startswith("cuda"):
        return f"{device} has no fp8"
    capability = torch.cuda.get_device_capability(device)
    if capability < FP8_CAPABILITY:
        return "this GPU has compute capability {}.{}, and fp8 needs {}.{}".format(*capability, *FP8_CAPABILITY)
    return ""


def formats_of(precision: Choice, codec: Choice, weights: Choice, kv: Choice) -> Formats:
    """Return the bytes of the numbers that are stored."""
    item = getattr(torch, precision.value).itemsize
    narrow = {"full": item, **dict.fromkeys(NARROW, 1)}
    codec_item = getattr(torch, codec.value).itemsize
    return Formats(item, narrow[weights.value], narrow[kv.value], codec_item, weights.value == "fp8")


def _compile_blocks(speaker: LoadedCheckpoint) -> None:
    if speaker.compiler.choice.value != "inductor":
        return
    modules = [module for network in speaker.loaded.networks for module in network.modules()]
    blocks = [module for module in modules if isinstance(module, TransformerBlock)]
    for block in blocks:
        block.feed = speaker.compiler(block.feed)  # type: ignore[method-assign]
    if not blocks:
        speaker.compiler.choice = Choice("eager", f"{speaker.family} has nothing that is compiled")
