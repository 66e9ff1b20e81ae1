"""Load a checkpoint: choose devices, number formats and kernels, and state the reason of each choice."""

from __future__ import annotations

import logging
import platform
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import torch

from s1_mini.capacity.cards import gpu_precision
from s1_mini.capacity.sizes import Formats, Sizes
from s1_mini.config import CompileBackend, CompileSwitch, EngineConfig, KVFormat, Precision, WeightFormat
from s1_mini.exceptions import ConfigurationError
from s1_mini.families.base import Description, Family, LoadedModel, Placement
from s1_mini.families.registry import family_of
from s1_mini.kernels.backend import HAS_TRITON, leave_triton
from s1_mini.kernels.swiglu import swiglu
from s1_mini.kernels.weight import product, quantize
from s1_mini.layers.transformer import TransformerBlock
from s1_mini.text.form import TextForm
from s1_mini.types import Choice
from s1_mini.voices.library import CheckpointVoices
from s1_mini.weights.directory import DEFAULT_MODEL, read_json
from s1_mini.weights.hub import Origin, origin_of

logger = logging.getLogger(__name__)

Function = TypeVar("Function", bound=Callable[..., Any])

NARROW = {"int8": torch.int8, "fp8": torch.float8_e4m3fn}
FP8_CAPABILITY = (8, 9)  # compute capability from which GPUs (Ada, Hopper) have instructions for e4m3

ELSEWHERE = Choice("elsewhere", "the stage runs in another process")
NO_MEMORY = "meta"  # torch's device for tensors with a shape but no data

FULL = Choice("full", "same as `precision`; no smaller format was requested")


class Compiler:
    """Compiles functions with inductor, if that was chosen. A function that cannot be compiled runs uncompiled."""

    def __init__(self, choice: Choice) -> None:
        self.choice = choice

    def __call__(self, function: Function) -> Function:
        """Return the function to call instead of `function`.

        `function` is compiled at its first call, because importing inductor takes seconds, and an engine that only
        replays CUDA graphs of its own kernels never makes that call.
        """
        if self.choice.value != "inductor":
            return function
        compiled: Callable[..., Any] | None = None

        def call(*arguments: Any) -> Any:
            nonlocal compiled
            if self.choice.value == "inductor":
                try:
                    compiled = compiled or torch.compile(function, backend="inductor")
                    return compiled(*arguments)
                except torch.OutOfMemoryError:
                    raise
                except (RuntimeError, ImportError, OSError) as error:
                    # If the function itself raised the error, the call below raises it again.
                    self.choice = Choice("eager", f"inductor failed: {first_line(error)}")
                    logger.warning("compilation failed, running eagerly: %s", first_line(error))
            return function(*arguments)

        return call  # type: ignore[return-value]


@dataclass
class LoadedCheckpoint:
    """A loaded checkpoint with its devices and number formats."""

    directory: Path
    origin: Origin | None
    family: str  # title of the model family
    description: Description
    loaded: LoadedModel
    device: Choice
    devices: Mapping[str, Choice]  # by stage
    precision: Choice
    codec_dtype: Choice
    weights_dtype: Choice
    kv_dtype: Choice
    kernels: Choice
    batch_invariance: Choice
    compiler: Compiler
    voices: CheckpointVoices
    text: TextForm

    @property
    def choices(self) -> dict[str, Choice]:
        names = ("device", "precision", "codec_dtype", "weights_dtype", "kv_dtype", "kernels", "batch_invariance")
        return {**{name: getattr(self, name) for name in names}, "compile": self.compiler.choice}

    def sizes(self) -> Sizes:
        """Return the memory and the work of the checkpoint in the formats in which it was loaded."""
        formats = formats_of(self.precision, self.codec_dtype, self.weights_dtype, self.kv_dtype)
        return family_of(self.directory).sizes(self.directory, formats)


def load(config: EngineConfig, here: Collection[str] | None = None) -> LoadedCheckpoint:
    """Load the checkpoint directory of `config`. Raises `CheckpointError` or `ConfigurationError`.

    `here` names the stages to load (default: all). The weights of other stages are checked but not read.
    """
    directory = config.checkpoint_path or DEFAULT_MODEL
    family = family_of(directory)
    device = choose_device(config.device)
    precision = choose_precision(config.precision, device.value, in_float16=family.in_float16)
    devices = choose_devices(config.placement, family, device)
    codec_dtype = choose_codec_dtype(config.codec_dtype, devices[family.stage_names[-1]].value)
    if here is not None:
        devices = {stage: choice if stage in here else ELSEWHERE for stage, choice in devices.items()}
    weights_dtype = try_products(choose_weights_dtype(config.weights_dtype, device.value), device.value)
    kv_dtype = choose_kv_dtype(config.kv_dtype, device.value)
    if config.placement:
        _check_room(family, directory, devices, formats_of(precision, codec_dtype, weights_dtype, kv_dtype))
    kernels = choose_kernels(device.value)
    invariance = choose_batch_invariance(config.batch_invariance, family, device.value, kernels, precision.value)
    placement = Placement(
        torch.device(device.value),
        getattr(torch, precision.value),
        getattr(torch, codec_dtype.value),
        NARROW.get(weights_dtype.value),
        NARROW.get(kv_dtype.value),
        {stage: torch.device(NO_MEMORY if choice == ELSEWHERE else choice.value) for stage, choice in devices.items()},
        invariance.value == "on",
    )
    description = family.describe(directory)
    speaker = LoadedCheckpoint(
        directory=directory,
        origin=origin_of(directory),
        family=family.title,
        description=description,
        loaded=family.open(directory, placement, config),
        device=device,
        devices=devices,
        precision=precision,
        codec_dtype=codec_dtype,
        weights_dtype=weights_dtype,
        kv_dtype=kv_dtype,
        kernels=kernels,
        batch_invariance=invariance,
        compiler=Compiler(choose_backend(config.compile, config.compile_backend, torch.device(device.value).type)),
        voices=CheckpointVoices.open(directory, description.voice),
        text=TextForm.from_config(read_json(directory / "config.json")),
    )
    _compile_blocks(speaker)
    _log(speaker)
    return speaker


def _log(speaker: LoadedCheckpoint) -> None:
    for name, choice in speaker.choices.items():
        if name != "kernels" or speaker.device.value != "cpu":  # for a CPU, `AheadCompiler` decides later
            logger.info("%s: %s (%s)", name, choice.value, choice.reason)


def _check_room(family: Family, directory: Path, devices: Mapping[str, Choice], formats: Formats) -> None:
    stages = gpus_of(devices)
    check_weights(family.sizes(directory, formats), stages, {gpu: free_bytes_of(gpu) for gpu in stages})


def gpus_of(devices: Mapping[str, Choice]) -> dict[str, list[str]]:
    """Return the stages of each GPU, by its name with an index; `cuda` is the current GPU."""
    stages: dict[str, list[str]] = {}
    for stage, device in devices.items():
        if device.value.startswith("cuda"):
            index = device.value.partition(":")[2] or torch.cuda.current_device()
            stages.setdefault(f"cuda:{index}", []).append(stage)
    return stages


def free_bytes_of(device: str) -> int:
    """Return the free bytes of a GPU, including memory that torch's allocator holds but does not use."""
    unused = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
    return torch.cuda.mem_get_info(device)[0] + unused


def check_weights(sizes: Sizes, stages: Mapping[str, list[str]], free_bytes: Mapping[str, float]) -> None:
    """Raise `ConfigurationError` unless the weights of each GPU's `stages` fit. Called before they are loaded."""
    for device, names in stages.items():
        needed = sum(sizes.stages[name].weight_bytes for name in names)
        if needed > free_bytes[device]:
            best = max(free_bytes, key=lambda name: free_bytes[name])
            raise ConfigurationError(
                f"placement: the weights of {', '.join(names)} take {needed / 1e9:.2f} GB, but {device} has only "
                f"{free_bytes[device] / 1e9:.2f} GB free; {best} has the most ({free_bytes[best] / 1e9:.2f} GB). "
                "`s1-mini plan --placement` computes what fits"
            )


def choose_devices(placement: Mapping[str, str], family: Family, device: Choice) -> dict[str, Choice]:
    """Return the device of each stage. Raises `ConfigurationError` for an unknown stage or a missing device."""
    unknown = sorted(set(placement) - set(family.stage_names))
    if unknown:
        raise ConfigurationError(
            f"S1_MINI_PLACEMENT: {family.title} has no stage {', '.join(unknown)}; its stages are "
            f"{', '.join(family.stage_names)}"
        )
    return {
        stage: choose_device(placement[stage], f"placement: {stage}") if stage in placement else device
        for stage in family.stage_names
    }


def choose_device(setting: str, name: str = "device") -> Choice:
    """Return the device for a setting. Raises `ConfigurationError`, naming the setting, for a missing device."""
    cuda = torch.cuda.is_available()
    if setting == "auto":
        if cuda:
            return Choice("cuda", f"found {torch.cuda.get_device_name()}")
        return Choice("cpu", "no CUDA device was found")
    if setting.startswith("cuda"):
        index = int(setting.partition(":")[2] or 0)
        if not cuda or index >= torch.cuda.device_count():
            raise ConfigurationError(
                f"{name}={setting!r} is not available: this machine has {torch.cuda.device_count()} CUDA devices; "
                "auto chooses an available device"
            )
    if setting == "mps" and not torch.backends.mps.is_available():
        raise ConfigurationError(f"{name}='mps' is not available: this machine has no Metal device; use auto or cpu")
    return Choice(setting, "set explicitly")


def choose_precision(setting: Precision, device: str, *, in_float16: bool = True) -> Choice:
    if setting != "auto":
        return Choice(setting, "set explicitly")
    if not device.startswith("cuda"):
        return Choice("float32", f"half precision is not faster on {device}")
    has_bfloat16 = torch.cuda.is_bf16_supported(including_emulation=False)
    return gpu_precision(has_bfloat16=has_bfloat16, in_float16=in_float16)


def choose_codec_dtype(setting: Precision, device: str) -> Choice:
    """Return the number format for decoding. References are always encoded in float32."""
    if setting != "auto":
        return Choice(setting, "set explicitly")
    if not device.startswith("cuda"):
        return Choice("float32", f"half precision is not faster on {device}")
    # 55 dB signal-to-noise ratio against float32 with the built-in voice; bfloat16 has 37 dB (2026-11).
    return Choice("float16", "half the size of float32 with no audible difference")


def choose_weights_dtype(setting: WeightFormat, device: str) -> Choice:
    """Return the weight format of large products; int8 replaces fp8 if the device does not support fp8."""
    if setting == "full":
        return FULL
    lack = _lack_of_fp8(device)
    if setting == "fp8" and lack:
        return Choice("int8", f"fp8 was requested, but {lack}; int8 has the same size")
    return Choice(setting, "set explicitly")


def try_products(weights_dtype: Choice, device: str) -> Choice:
    """Return the given weight format, or `full` if the device cannot compute a small product in that format."""
    if weights_dtype.value == "full":
        return weights_dtype
    try:
        weight = quantize(torch.eye(64, device=device), NARROW[weights_dtype.value])
        product(torch.ones(1, 64, device=device), weight)
    except (RuntimeError, NotImplementedError, AttributeError) as error:
        return Choice("full", f"{device} cannot multiply {weights_dtype.value} weights: {first_line(error)}")
    return weights_dtype


def choose_kv_dtype(setting: KVFormat, device: str) -> Choice:
    """Return the format of keys and values. A CPU dequantizes fp8 at every step."""
    if setting == "full":
        return FULL
    lack = "" if device == "cpu" else _lack_of_fp8(device)
    return Choice("full", f"fp8 was requested, but {lack}") if lack else Choice(setting, "set explicitly")


def choose_kernels(device: str) -> Choice:
    """Return `triton`; or `torch` if there is no CUDA GPU, no Triton, or Triton cannot run a small kernel."""
    if not device.startswith("cuda"):
        return Choice("torch", f"the Triton kernels need an NVIDIA GPU; this device is {device}")
    if not HAS_TRITON:
        return Choice("torch", "Triton is not installed; torch gives the same results with more kernels per step")
    try:
        _try_kernel(device)
    except torch.OutOfMemoryError:
        raise
    except Exception as error:  # errors of Triton, compilers and drivers have no common class
        leave_triton()
        logger.warning("Triton failed, using torch from now on: %s", first_line(error))
        return Choice("torch", f"Triton failed: {first_line(error)}")
    return Choice("triton", f"Triton is available for {device}")


def choose_batch_invariance(setting: str, family: Family, device: str, kernels: Choice, precision: str) -> Choice:
    """Return `on` if it was requested and the output of a row is guaranteed not to depend on other rows, else `off`."""
    if setting == "off":
        return Choice("off", "not requested")
    if "batch_invariance" not in family.settings.model_fields:
        return Choice("off", f"requested, but {family.title} does not support it")
    if device == "cpu":
        return Choice("on", "a CPU is always batch-invariant")
    if kernels.value != "triton":
        return Choice("off", f"requested, but only the Triton kernels guarantee it: {kernels.reason}")
    if precision == "float32":
        return Choice("off", "requested, but attention in float32 does not support it; set S1_MINI_PRECISION=bfloat16")
    return Choice("on", "set explicitly")


def choose_backend(switch: CompileSwitch, backend: CompileBackend, device: str) -> Choice:
    """Return `inductor`, `eager` where inductor is missing or not faster, or `off` if the settings disable it.

    On a CPU, the setting `compile` is about numba instead (`ahead.py`).
    """
    if switch == "false" or backend == "off":
        return Choice("off", "disabled by S1_MINI_COMPILE or S1_MINI_COMPILE_BACKEND")
    if backend != "auto":
        return Choice(backend, "set by S1_MINI_COMPILE_BACKEND")
    if device != "cuda":
        return Choice("eager", f"inductor is not faster on {device}; S1_MINI_COMPILE_BACKEND=inductor overrides")
    if platform.system() != "Linux":
        return Choice("eager", "inductor needs Triton, which is only available on Linux")
    if not HAS_TRITON:
        return Choice("eager", "inductor needs Triton on a GPU, but Triton is not installed")
    return Choice("inductor", "Linux with Triton on a GPU")


def _try_kernel(device: str) -> None:
    swiglu(torch.ones(1, 32, device=device)).cpu()


def _lack_of_fp8(device: str) -> str:
    """Return why a device cannot multiply fp8, or an empty string if it can."""
    if not device.startswith("cuda"):
        return f"{device} does not support fp8"
    capability = torch.cuda.get_device_capability(device)
    if capability < FP8_CAPABILITY:
        return "this GPU has compute capability {}.{}, but fp8 needs {}.{}".format(*capability, *FP8_CAPABILITY)
    return ""


def formats_of(precision: Choice, codec: Choice, weights: Choice, kv: Choice) -> Formats:
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
        speaker.compiler.choice = Choice("eager", f"{speaker.family} has no compilable blocks")


def first_line(error: Exception) -> str:
    return str(error).strip().partition("\n")[0] or type(error).__name__
