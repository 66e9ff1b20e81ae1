"""Losses from frozen networks that compare decoded speech with the original: four networks, features and scores.

python -m recipes.voice.perceptual --work DIR --packages DIR [--rows 24] [--frames 48] [--batches 4]

A single network as a loss improves its own score alone (README.md), so that several are combined, and their features
are compared with those of the original. The networks are DistillMOS, the encoder of Whisper base, DNSMOS P.808 and
Resemblyzer. Judges that are used as losses are not independent any more: with all four networks, only DNSMOS P.835 is.
`codec.py` uses Whisper and Resemblyzer by default, so that DistillMOS and P.808 remain judges.
`--packages` is the output of `packages.py`. The command prints the norm of each loss's gradient at the output of the
codec of `--work`, relative to that of the mel loss; `WEIGHTS` is derived from it.
Shapes: B rows, T samples, L frames, C channels.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from recipes.voice.networks import (
    EAR_RATE,
    HOP,
    SMALL,
    MelSpectrum,
    Resemblyzer,
    WhisperMel,
    open_distillmos,
    open_whisper_encoder,
    package_folder,
    whisper_folder,
)
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
# The waves fade out from 7,300 to 7,850 Hz, as those of soxr, with which the judges resample. DistillMOS rates waves
# that end abruptly at 8 kHz 0.16 lower, and waves that fade out as far as 8 kHz 0.12 lower.
FADE = (0.9125, 0.98125)
DITHER = 2e-4  # amplitude of the noise added to both waves (-74 dB), so that inaudible differences do not count

Features = list[Tensor]  # [B, C, …] each


class Network(nn.Module):
    """A frozen network that takes waves at 16 kHz."""

    losses: tuple[str, ...]  # names of its losses, in the order of `compare`

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


def distance(expected: Features, decoded: Features) -> Tensor:
    """Mean absolute difference of features, relative to the standard deviation of each channel of `expected`."""
    total = expected[0].new_zeros((), dtype=torch.float32)
    for real, false in zip(expected, decoded, strict=True):
        original = real.float()
        spread = original.std([0, *range(2, original.dim())], keepdim=True)
        total = total + ((false.float() - original) / (spread + 0.1 * spread.mean())).abs().mean()
    return total / len(expected)


class DistillMos(Network):
    """DistillMOS (Stahl and Gamper, 2025): convolutions over the complex spectrum, and a transformer."""

    losses = ("distillmos", "distillmos_score")
    WINDOW = 320

    def __init__(self) -> None:
        super().__init__()
        self._network = open_distillmos()
        self.window: Tensor
        self.register_buffer("window", torch.hann_window(self.WINDOW))

    def prepare(self, waves: Tensor) -> Tensor:
        """Complex spectra [B, 2, F, L], with magnitudes compressed to the power 0.3."""
        waves = waves / (waves.abs().amax(1, keepdim=True) + 1e-8)
        sides = (self.WINDOW - HOP) // 2
        spectrum = torch.stft(
            F.pad(waves, (sides, sides), "reflect"),
            self.WINDOW,
            HOP,
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
    """The encoder of Whisper (Radford et al., 2022)."""

    losses = ("whisper",)

    def __init__(self, encoder: Any) -> None:
        super().__init__()
        self._encoder = encoder
        self._mel = WhisperMel(encoder.conv1.in_channels)

    def prepare(self, waves: Tensor) -> Tensor:
        """Whisper's log-mel spectra [B, bands, L]."""
        spectra: Tensor = self._mel(waves)
        return spectra

    def outputs(self, prepared: Tensor) -> tuple[Features, None]:
        # `WhisperEncoder.forward` of transformers accepts 30 s only.
        encoder, features = self._encoder, []
        x = F.gelu(encoder.conv2(F.gelu(encoder.conv1(prepared)))).transpose(1, 2)
        x = x + encoder.embed_positions.weight[: x.shape[1]]
        for layer in encoder.layers:
            x = layer(x, None)
            features.append(x.transpose(1, 2))
        features[-1] = encoder.layer_norm(x).transpose(1, 2)
        return features, None


class P808(Network):
    """DNSMOS P.808 (Reddy et al., 2020): convolutions over the log-mel spectrum, and their maximum over time."""

    losses = ("p808", "p808_score")
    WINDOW, BANDS, DYNAMIC_RANGE_DB = 321, 120, 80.0
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
        self._mel = MelSpectrum(self.WINDOW, self.BANDS, "constant")

    def prepare(self, waves: Tensor) -> Tensor:
        """Log-mel spectra [B, 1, L, bands] in dB below the loudest, as of librosa, scaled to -1 to 1."""
        levels = 10 * self._mel(waves).clamp_min(SMALL).log10()
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
    """Resemblyzer's encoder of the speaker, for waves of any length."""

    losses = ("speaker",)

    def __init__(self, network: Resemblyzer) -> None:
        super().__init__()
        network.lstm.train()  # cuDNN's LSTM has no backward pass in eval mode; there is no dropout
        self._network = network

    def prepare(self, waves: Tensor) -> Tensor:
        """Mel spectra [B, L, bands], powers."""
        return self._network.mel(waves).transpose(1, 2)

    def outputs(self, prepared: Tensor) -> tuple[Features, None]:
        """Return the embedding [B, 256], of length 1; in float32, because the powers' range is large."""
        with torch.autocast(prepared.device.type, enabled=False):
            return [self._network(prepared)], None

    def compare(
        self, expected: tuple[Features, Tensor | None], decoded: tuple[Features, Tensor | None]
    ) -> list[Tensor]:
        """One minus the cosine of the embeddings."""
        return [1 - (expected[0][0] * decoded[0][0]).sum(1).mean()]


class Perceptual(nn.Module):
    """Several networks; `loss_names` are the names of their losses, in order."""

    def __init__(self, networks: Sequence[Network], rate: int) -> None:
        super().__init__()
        self._all = list(networks)
        self.networks = nn.ModuleList(networks)  # the same networks, so that they move with this module
        self.loss_names = [name for network in networks for name in network.losses]
        self._factor = rate / EAR_RATE
        self.requires_grad_(False)

    @classmethod
    def load(cls, packages: Path, rate: int, device: torch.device, names: Sequence[str] = ()) -> Perceptual:
        """Load the networks of `NETWORKS` that are named, by default all; `packages` is the output of `packages.py`.

        Raises `SystemExit` for an unknown name.
        """
        if unknown := sorted(set(names) - set(NETWORKS)):
            raise SystemExit(f"unknown network {', '.join(unknown)}: use some of {', '.join(NETWORKS)}")
        networks = [NETWORKS[name](packages) for name in names or NETWORKS]
        return cls(networks, rate).to(device).to(memory_format=torch.channels_last)  # type: ignore[call-overload]

    def forward(self, expected: Tensor, decoded: Tensor) -> Tensor:
        """Return the losses [N] of decoded waves [B, 1, T], compared with the original waves."""
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
        return resampled(waves.squeeze(1), self._factor, FADE)

    @staticmethod
    def _outputs(network: Network, waves: Tensor) -> tuple[Features, Tensor | None]:
        prepared = network.prepare(waves)
        with torch.autocast(waves.device.type, torch.bfloat16, enabled=waves.is_cuda, cache_enabled=False):
            return network.outputs(prepared)


NETWORKS: dict[str, Callable[[Path], Network]] = {
    "distillmos": lambda _: DistillMos(),
    "whisper": lambda packages: WhisperEncoder(open_whisper_encoder(whisper_folder(packages))),
    "p808": lambda _: P808(read_onnx(package_folder("speechmos") / "dnsmos_models" / "model_v8.onnx")),
    "speaker": lambda _: SpeakerEncoder(Resemblyzer.read()),
}


def gradients(work: Path, packages: Path, rows: int, frames: int, batches: int) -> dict[str, float]:
    """Return the norm of the gradient of each loss, without its weight, at the decoder's output.

    The unit is the norm of the gradient of the mel loss with its weight. The speech is that of `work`.
    """
    from recipes.voice.codec import MEL, STAGES, CodecTraining  # which imports this module

    stage = replace(STAGES["decoder"], rows=rows, breadth=1)
    device = fast_device()
    losses = Perceptual.load(packages, 24_000, device)
    training = CodecTraining("decoder", "fast", work, stage, device, compiles=False, perceptual=losses, frames=frames)
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
