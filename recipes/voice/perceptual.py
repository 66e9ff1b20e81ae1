"""Losses from frozen networks that compare decoded speech with the original: four networks, features and scores.

python -m recipes.voice.perceptual --work DIR --packages DIR [--rows 24] [--frames 48] [--batches 4]

A single network as a loss improves its own score alone (README.md), so that several are combined, and their features
are compared with those of the original: DistillMOS, the encoder of Whisper base, DNSMOS P.808 and Resemblyzer. Neither
DNSMOS P.835 nor the decoder of Whisper is used, so that they remain as judges. `--packages` is the output of
`packages.py`. The command prints the norm of each loss's gradient at the output of the codec of `--work`, relative to
that of the mel loss; `WEIGHTS` is derived from it.
Shapes: B rows, T samples, L frames, C channels.
"""

from __future__ import annotations

import struct
from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from recipes.voice.ears import EAR_RATE, open_distillmos, whisper_folder
from recipes.voice.shared import fast_device, parser
from recipes.voice.speech import resampled

# Weight of each loss. Without weights, the norms of the gradients at the output of the built-in decoder, relative
# to that of the mel loss with its weight, are 0.034, 0.475, 0.168, 0.333, 0.122 and 0.0014 (this module's
# command, 2026-11-26, commit ada00855, 8 rows of 2.4 s). With the weights, features have half of its gradient, and
# scores and the speaker about a tenth.
WEIGHTS = {
    "distillmos": 15.0,
    "distillmos_score": 0.2,
    "whisper": 3.0,
    "p808": 1.5,
    "p808_score": 0.8,
    "speaker": 100.0,
}
DITHER = 2e-4  # amplitude of the noise added to both waves (-74 dB), so that inaudible differences do not count
SMALL = 1e-10  # smallest power of a spectrum

Features = list[Tensor]  # [B, C, …] each


class Network(nn.Module):
    """A frozen network that takes waves at 16 kHz."""

    @abstractmethod
    def prepare(self, waves: Tensor) -> Tensor:
        """Return the network's input for waves [B, T]; computed in float32."""

    @abstractmethod
    def outputs(self, prepared: Tensor) -> tuple[Features, Tensor | None]:
        """Return features, and a score [B] if the network has one; computed in half precision on a GPU."""

    def compare(
        self, expected: tuple[Features, Tensor | None], decoded: tuple[Features, Tensor | None]
    ) -> list[Tensor]:
        """Return the distance of the features, and by how much the score is lower than that of the original."""
        losses = [distance(expected[0], decoded[0])]
        if expected[1] is not None and decoded[1] is not None:
            losses.append((expected[1].float() - decoded[1].float()).relu().mean())
        return losses


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


def distance(expected: Features, decoded: Features) -> Tensor:
    """Mean absolute difference of features, relative to the standard deviation of each channel of `expected`."""
    total = expected[0].new_zeros((), dtype=torch.float32)
    for real, false in zip(expected, decoded, strict=True):
        original = real.float()
        spread = original.std([0, *range(2, original.dim())], keepdim=True)
        total = total + ((false.float() - original) / (spread + 0.1 * spread.mean())).abs().mean()
    return total / len(expected)


def power(waves: Tensor, window: Tensor, hop: int, padding: str) -> Tensor:
    """Power spectra [B, F, L] of waves [B, T], padded at both ends so that frames are centred."""
    size = len(window)
    spectrum = torch.stft(waves, size, hop, window=window, pad_mode=padding, return_complex=True)
    return torch.view_as_real(spectrum).square().sum(-1)


class DistillMos(Network):
    """DistillMOS (Stahl and Gamper, 2025): convolutions over the complex spectrum, and a transformer."""

    HOP, WINDOW = 160, 320

    def __init__(self) -> None:
        super().__init__()
        self._network = open_distillmos()
        self.window: Tensor
        self.register_buffer("window", torch.hann_window(self.WINDOW))

    def prepare(self, waves: Tensor) -> Tensor:
        """Complex spectra [B, 2, F, L], with magnitudes compressed to the power 0.3."""
        waves = waves / (waves.abs().amax(1, keepdim=True) + 1e-8)
        sides = (self.WINDOW - self.HOP) // 2
        spectrum = torch.stft(
            F.pad(waves, (sides, sides), "reflect"),
            self.WINDOW,
            self.HOP,
            window=self.window,
            center=False,
            return_complex=True,
        )
        parts = torch.view_as_real(spectrum).permute(0, 3, 1, 2)
        compressed: Tensor = parts * (parts.square().sum(1, keepdim=True) + SMALL) ** -0.35
        return compressed

    def outputs(self, prepared: Tensor) -> tuple[Features, Tensor]:
        features, x, head = [], prepared, self._network.transformer_pool_attn
        for layer in self._network.cnn.cnn:
            x = layer(x)
            if isinstance(layer, nn.LeakyReLU):
                features.append(x)
        x = head.norm_input(x.flatten(1, 2))
        x = head.transformer.linear_proj(head.transformer.norm(x).transpose(1, 2))
        x = x + head.transformer.position_encoding.pe[:, : x.shape[1]]
        for layer in head.transformer.transformer_encoder.layers:
            x = layer(x)
            features.append(x.transpose(1, 2))
        x = head.norm_trans(x.transpose(1, 2)).transpose(1, 2)
        return features, 1 + 4 * head.pool(x).squeeze(1).sigmoid()


class WhisperEncoder(Network):
    """The encoder of Whisper (Radford et al., 2022), with the weights of a model of CTranslate2."""

    HOP, WINDOW, DYNAMIC_RANGE = 160, 400, 8.0  # samples, samples, decades of power

    def __init__(self, weights: dict[str, Tensor]) -> None:
        super().__init__()
        first, second = weights["encoder/conv1/weight"], weights["encoder/conv2/weight"]
        width, num_heads = len(first), int(weights["encoder/num_heads"])
        self._first = nn.Conv1d(first.shape[1], width, first.shape[2], padding=1)
        self._second = nn.Conv1d(width, width, second.shape[2], stride=2, padding=1)
        inner = len(weights["encoder/layer_0/ffn/linear_0/weight"])
        num_layers = sum(name.endswith("ffn/linear_0/bias") for name in weights if name.startswith("encoder/"))
        self._layers = nn.ModuleList(
            nn.TransformerEncoderLayer(width, num_heads, inner, 0.0, "gelu", batch_first=True, norm_first=True)
            for _ in range(num_layers)
        )
        self.positions: Tensor
        self.register_buffer("positions", weights["encoder/position_encodings/encodings"].float())
        self.window: Tensor
        self.register_buffer("window", torch.hann_window(self.WINDOW))
        self.bank: Tensor
        self.register_buffer("bank", mel_bank(self.WINDOW, first.shape[1]))
        self._last = nn.LayerNorm(width)
        with torch.no_grad():
            for name, parameter in self.named_parameters():
                parameter.copy_(weights[_ctranslate2_name(name)])
        self.eval()

    def prepare(self, waves: Tensor) -> Tensor:
        """Log-mel spectra [B, bands, L] as of Whisper: base 10, bounded relative to the largest, scaled."""
        spectrum = power(waves, self.window, self.HOP, "reflect")[..., :-1]
        levels = (self.bank @ spectrum).clamp_min(SMALL).log10()
        levels = levels.maximum(levels.amax((1, 2), keepdim=True) - self.DYNAMIC_RANGE)
        return (levels + 4) / 4

    def outputs(self, prepared: Tensor) -> tuple[Features, None]:
        x = F.gelu(self._second(F.gelu(self._first(prepared)))).transpose(1, 2)
        x = x + self.positions[: x.shape[1]]
        features = []
        for layer in self._layers:
            x = layer(x)
            features.append(x.transpose(1, 2))
        features[-1] = self._last(x).transpose(1, 2)
        return features, None


_CTRANSLATE2 = {
    "_first": "conv1",
    "_second": "conv2",
    "_last": "layer_norm",
    "norm1": "self_attention/layer_norm",
    "norm2": "ffn/layer_norm",
    "self_attn.in_proj": "self_attention/linear_0",
    "self_attn.out_proj": "self_attention/linear_1",
    "linear1": "ffn/linear_0",
    "linear2": "ffn/linear_1",
}


def _ctranslate2_name(name: str) -> str:
    """Translate the name of a parameter of `WhisperEncoder`."""
    is_of_layer = name.startswith("_layers.")
    prefix, rest = ("", name) if not is_of_layer else (f"layer_{name.split('.')[1]}/", name.split(".", 2)[2])
    module, kind = rest.replace("in_proj_", "in_proj.").rsplit(".", 1)
    translated = _CTRANSLATE2[module]
    if translated.endswith("layer_norm"):
        kind = {"weight": "gamma", "bias": "beta"}[kind]
    return f"encoder/{prefix}{translated}/{kind}"


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


class P808(Network):
    """DNSMOS P.808 (Reddy et al., 2020): convolutions over the log-mel spectrum, and their maximum over time."""

    HOP, WINDOW, BANDS, DYNAMIC_RANGE_DB = 160, 321, 120, 80.0
    POOLED = (0, 1, 3)  # convolutions that a pooling follows

    def __init__(self, initializers: dict[str, Tensor]) -> None:
        """Build the network from the tensors of `model_v8.onnx`."""
        super().__init__()
        self._convolutions, self._products = nn.ModuleList(), nn.ModuleList()
        for weight, bias in _weights_and_biases(initializers):
            if weight.dim() == 4:
                convolution = nn.Conv2d(weight.shape[1], len(weight), 3, padding=1)
                convolution.load_state_dict({"weight": weight, "bias": bias})
                self._convolutions.append(convolution)
            else:
                product = nn.Linear(*weight.shape)
                product.load_state_dict({"weight": weight.t(), "bias": bias})
                self._products.append(product)
        self.window: Tensor
        self.register_buffer("window", torch.hann_window(self.WINDOW))
        self.bank: Tensor
        self.register_buffer("bank", mel_bank(self.WINDOW, self.BANDS))

    def prepare(self, waves: Tensor) -> Tensor:
        """Log-mel spectra [B, 1, L, bands] in dB below the loudest, as of librosa, scaled to -1 to 1."""
        levels = 10 * (self.bank @ power(waves, self.window, self.HOP, "constant")).clamp_min(SMALL).log10()
        levels = (levels - levels.amax((1, 2), keepdim=True)).clamp_min(-self.DYNAMIC_RANGE_DB)
        return ((levels + self.DYNAMIC_RANGE_DB / 2) / (self.DYNAMIC_RANGE_DB / 2)).transpose(1, 2).unsqueeze(1)

    def outputs(self, prepared: Tensor) -> tuple[Features, Tensor]:
        features, x = [], prepared
        for index, layer in enumerate(self._convolutions):
            x = layer(x).relu()
            features.append(x)
            if index in self.POOLED:
                x = F.max_pool2d(x, 2)
        x = x.amax((2, 3))
        *hidden, last = self._products
        for layer in hidden:
            x = layer(x).relu()
            features.append(x)
        return features, last(x).squeeze(1)


def _weights_and_biases(initializers: dict[str, Tensor]) -> list[tuple[Tensor, Tensor]]:
    """Pair the tensors of each layer, in the order of the layers' numbers."""
    named: dict[str, list[Tensor]] = {}
    for name, tensor in initializers.items():
        if tensor.dim() and tensor.is_floating_point():
            layer = next(part for part in name.split("/") if part.startswith(("conv2d", "dense")))
            named.setdefault(layer, []).append(tensor)
    ordered = sorted(named, key=lambda layer: (layer.split("_")[0], int(layer.split("_")[1])))
    return [
        (max(named[layer], key=lambda tensor: tensor.dim()), min(named[layer], key=lambda tensor: tensor.dim()))
        for layer in ordered
    ]


def read_onnx(path: Path) -> dict[str, Tensor]:
    import onnx

    return {
        each.name: torch.from_numpy(onnx.numpy_helper.to_array(each).copy())
        for each in onnx.load(path).graph.initializer
    }


class SpeakerEncoder(Network):
    """Resemblyzer's encoder of the speaker (GE2E, Wan et al., 2018): an LSTM over the mel spectrum."""

    HOP, WINDOW, BANDS, WIDTH, DEPTH = 160, 400, 40, 256, 3

    def __init__(self, weights: dict[str, Tensor]) -> None:
        super().__init__()
        self.lstm = nn.LSTM(self.BANDS, self.WIDTH, self.DEPTH, batch_first=True)
        self.linear = nn.Linear(self.WIDTH, self.WIDTH)
        self.load_state_dict({name: weights[name] for name in self.state_dict()})
        self.window: Tensor
        self.register_buffer("window", torch.hann_window(self.WINDOW))
        self.bank: Tensor
        self.register_buffer("bank", mel_bank(self.WINDOW, self.BANDS))

    def prepare(self, waves: Tensor) -> Tensor:
        """Mel spectra [B, L, bands], powers."""
        return (self.bank @ power(waves, self.window, self.HOP, "constant")).transpose(1, 2)

    def outputs(self, prepared: Tensor) -> tuple[Features, None]:
        """Return the embedding [B, 256], of length 1; in float32, because the powers' range is large."""
        with torch.autocast(prepared.device.type, enabled=False):
            _, (hidden, _) = self.lstm(prepared)
            return [F.normalize(self.linear(hidden[-1]).relu(), dim=1)], None

    def compare(
        self, expected: tuple[Features, Tensor | None], decoded: tuple[Features, Tensor | None]
    ) -> list[Tensor]:
        """One minus the cosine of the embeddings."""
        return [1 - (expected[0][0] * decoded[0][0]).sum(1).mean()]


class Perceptual(nn.Module):
    """All networks; their losses have the order of `WEIGHTS`."""

    def __init__(self, networks: Sequence[Network], rate: int) -> None:
        super().__init__()
        self._all = list(networks)
        self.networks = nn.ModuleList(networks)  # the same networks, so that they move with this module
        self._factor = rate / EAR_RATE
        self.requires_grad_(False)

    @classmethod
    def load(cls, packages: Path, rate: int, device: torch.device) -> Perceptual:
        """Load the networks from installed packages and from the output of `packages.py`."""
        whisper, speechmos, resemblyzer = whisper_folder(packages), find_spec("speechmos"), find_spec("resemblyzer")
        if speechmos is None or speechmos.origin is None or resemblyzer is None or resemblyzer.origin is None:
            raise SystemExit("speechmos or Resemblyzer is missing; install them as in recipes/voice/README.md")
        graph = Path(speechmos.origin).parent / "dnsmos_models" / "model_v8.onnx"
        speaker = torch.load(Path(resemblyzer.origin).parent / "pretrained.pt", "cpu", weights_only=True)
        networks = [
            DistillMos(),
            WhisperEncoder(read_ctranslate2(whisper / "model.bin", "encoder/")),
            P808(read_onnx(graph)),
            SpeakerEncoder(speaker["model_state"]),
        ]
        return cls(networks, rate).to(device).to(memory_format=torch.channels_last)  # type: ignore[call-overload]

    def forward(self, expected: Tensor, decoded: Tensor) -> Tensor:
        """Return the losses [6] of decoded waves [B, 1, T], compared with the original waves."""
        noise = DITHER * torch.randn_like(expected)
        with torch.no_grad():
            real = self._at_16k(expected + noise)
        false = self._at_16k(decoded.float() + noise)
        losses = []
        for network in self._all:
            with torch.no_grad():
                wanted = self._outputs(network, real)
            losses += network.compare(wanted, self._outputs(network, false))
        return torch.stack(losses)

    def _at_16k(self, waves: Tensor) -> Tensor:
        return resampled(waves.squeeze(1), self._factor)

    @staticmethod
    def _outputs(network: Network, waves: Tensor) -> tuple[Features, Tensor | None]:
        prepared = network.prepare(waves)
        with torch.autocast(waves.device.type, torch.bfloat16, enabled=waves.is_cuda, cache_enabled=False):
            return network.outputs(prepared)


def gradients(work: Path, packages: Path, rows: int, frames: int, batches: int) -> dict[str, float]:
    """Return the norm of the gradient of each loss, without its weight, at the decoder's output.

    The unit is the norm of the gradient of the mel loss with its weight. The speech is that of `work`.
    """
    from recipes.voice.codec import MEL, STAGES, CodecTraining  # which imports this module

    stage = replace(STAGES["decoder"], rows=rows, breadth=1)
    training = CodecTraining(
        "decoder", "fast", work, stage, fast_device(), compiles=False, perceptual=packages, frames=frames
    )
    training.resume()
    training.pool.refill()
    assert training.perceptual is not None
    norms = torch.zeros(len(WEIGHTS), device=training.device)
    for _ in range(batches):
        with torch.no_grad():
            wave, decoded, _ = training.round_trip()
        decoded.requires_grad_()
        (mel,) = torch.autograd.grad(MEL * training.mel(wave, decoded), decoded)
        for index, loss in enumerate(training.perceptual(wave, decoded)):
            (gradient,) = torch.autograd.grad(loss, decoded, retain_graph=True)
            norms[index] += gradient.norm() / mel.norm() / batches
    return dict(zip(WEIGHTS, norms.tolist(), strict=True))


def main() -> None:
    options = parser(__doc__, work=Path, packages=Path, rows=24, frames=48, batches=4).parse_args()
    for name, norm in gradients(options.work, options.packages, options.rows, options.frames, options.batches).items():
        print(f"{name}: {norm:.3g}; with its weight {norm * WEIGHTS[name]:.2f}")


if __name__ == "__main__":
    main()
