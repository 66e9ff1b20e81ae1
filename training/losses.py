"""How far a decoded wave is from the original: log-mel spectra at several resolutions (Kumar et al. 2023, DAC)."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import torch
from torch import Tensor, nn

Scale = tuple[int, int, float]  # window length in samples, mel bands and weight; hops are a quarter window


class MelLoss(nn.Module):
    """Mean absolute difference of log10 mel amplitudes, weighted and summed over `scales`; waves are [B, 1, T].

    Amplitudes below `floor`, where nothing is heard, count as `floor`.
    """

    def __init__(self, sample_rate: int, scales: Sequence[Scale], floor: float) -> None:
        super().__init__()
        self._scales, self._floor = tuple(scales), floor
        for window, bands, _ in scales:
            self.register_buffer(f"window_{window}", torch.hann_window(window), persistent=False)
            self.register_buffer(f"bank_{window}", mel_bank(sample_rate, window, bands), persistent=False)

        self._compare: Callable[[list[Tensor]], Tensor] = self._distance

    def compile_parts(self) -> None:
        """Let torch's compiler join what follows the spectra."""
        self._compare = torch.compile(self._distance, dynamic=False, fullgraph=True)

    def forward(self, expected: Tensor, decoded: Tensor) -> Tensor:
        both = torch.cat((expected, decoded)).squeeze(1).float()
        spectra = []
        for size, _, _ in self._scales:
            window = getattr(self, f"window_{size}")
            spectra.append(torch.stft(both, size, size // 4, window=window, return_complex=True))
        return self._compare([torch.view_as_real(spectrum) for spectrum in spectra])

    def _distance(self, spectra: list[Tensor]) -> Tensor:
        total = spectra[0].new_zeros(())
        for spectrum, (size, _, weight) in zip(spectra, self._scales, strict=True):
            amplitude = (spectrum.square().sum(-1) + 1e-10).sqrt()
            mel, other = (getattr(self, f"bank_{size}") @ amplitude).clamp_min(self._floor).log10().chunk(2)
            total = total + weight * (mel - other).abs().mean()
        return total


def mel_bank(sample_rate: int, window: int, bands: int) -> Tensor:
    """Triangles, equally wide on the mel scale (O'Shaughnessy 1987): [bands, window / 2 + 1]."""
    mels = np.linspace(0.0, 2595.0 * np.log10(1.0 + sample_rate / 2 / 700.0), bands + 2)
    edges = 700.0 * (10.0 ** (mels / 2595.0) - 1.0)
    bins = np.linspace(0.0, sample_rate / 2, window // 2 + 1)
    low, centre, high = edges[:-2, None], edges[1:-1, None], edges[2:, None]
    rise = (bins - low) / (centre - low + 1e-9)
    fall = (high - bins) / (high - centre + 1e-9)
    return torch.from_numpy(np.maximum(0.0, np.minimum(rise, fall)).astype(np.float32))
