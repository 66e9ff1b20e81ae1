"""Learned metrics of speech, from the packages that `packages.py` downloads: words, naturalness, speaker, and DNSMOS.

DNSMOS P.835 (Reddy et al., 2022, arXiv 2110.01763) and P.808 (Reddy et al., 2020, arXiv 2010.15258) predict a mean
opinion score of 1 to 5. This module runs the networks of the speechmos wheel with onnxruntime, because speechmos' own
code needs pandas and computes unused figures. Both were trained to rate noise suppression, so compare their scores only
with those of the teacher.
"""

from __future__ import annotations

import functools
import sys
import types
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from recipes.voice.networks import EAR_RATE, open_distillmos, package_folder, whisper_folder
from s1_mini.text import spoken

Wave = NDArray[np.float32]


class Ears:
    """All metrics; each network is loaded at its first use. Waves are float32 [T], mono."""

    def __init__(self, packages: Path) -> None:
        self._packages = packages

    def words(self, wave: Wave, rate: int) -> str:
        """Return the transcript of Whisper base, with numbers in words.

        If Whisper repeats itself, it decodes again at a higher temperature, as its authors intend.
        """
        segments, _ = self._whisper.transcribe(
            at_rate(wave, rate), language="en", beam_size=5, temperature=(0.0, 0.2, 0.4)
        )
        return spoken(" ".join(segment.text.strip() for segment in segments))

    def naturalness(self, wave: Wave, rate: int) -> float:
        """DistillMOS, from 1 to 5."""
        with torch.inference_mode():
            return float(self._distillmos(torch.from_numpy(at_rate(wave, rate)).unsqueeze(0)).item())

    def quality(self, wave: Wave, rate: int) -> float:
        """DNSMOS overall, from 1 to 5; designed to rate noise suppression."""
        return overall_quality(at_rate(wave, rate))

    def opinion(self, wave: Wave, rate: int) -> float:
        """DNSMOS P.808, from 1 to 5."""
        return p808(at_rate(wave, rate))

    def voice(self, wave: Wave, rate: int) -> NDArray[np.float32]:
        """Resemblyzer's embedding [256] of the speaker, of length 1."""
        from resemblyzer import preprocess_wav

        embedding: NDArray[np.float32] = self._resemblyzer.embed_utterance(preprocess_wav(at_rate(wave, rate)))
        return embedding

    def similarity(self, wave: Wave, other: Wave, rate: int) -> float:
        """Cosine of the embeddings of the speakers of two waves."""
        return float(self.voice(wave, rate) @ self.voice(other, rate))

    @functools.cached_property
    def _whisper(self) -> Any:
        from faster_whisper import WhisperModel

        return WhisperModel(str(whisper_folder(self._packages)), device="cpu", compute_type="int8", cpu_threads=1)

    @functools.cached_property
    def _distillmos(self) -> Any:
        return open_distillmos()

    @functools.cached_property
    def _resemblyzer(self) -> Any:
        import scipy.ndimage

        name = "scipy.ndimage.morphology"  # Resemblyzer uses one function of this module, which scipy has removed
        if name not in sys.modules:
            module: Any = types.ModuleType(name)
            module.binary_dilation = scipy.ndimage.binary_dilation
            sys.modules[name] = module
        from resemblyzer import VoiceEncoder

        return VoiceEncoder("cpu", verbose=False)


def at_rate(wave: Wave, rate: int, target_rate: int = EAR_RATE) -> Wave:
    """Return a wave at another sample rate."""
    import soxr  # not installed on machines that only generate speech

    return np.asarray(soxr.resample(wave, rate, target_rate), np.float32)


WINDOW = 144_160  # 9.01 s, the network's input
OVERALL = np.poly1d((-0.06766283, 1.11546468, 0.04602535))  # speechmos 0.0.1.1: raw output to opinion


def overall_quality(wave_16k: NDArray[np.generic]) -> float:
    """Predict the overall opinion (1 to 5) of one recording: the mean of its 9.01 s windows, one a second.

    A shorter recording is repeated up to 9.01 s and judged once. (speechmos doubles it until it is long enough and
    judges a window for every second: up to eight times the work.) NaN for a recording without samples.
    """
    # One at a time, so that the figures do not depend on the number of windows.
    network = _network("sig_bak_ovr")
    raw = [network.run(None, {"input_1": window[None]})[0][0][2] for window in _windows(wave_16k)]
    return float(np.mean(OVERALL(np.array(raw, np.float64)))) if raw else float("nan")


def p808(wave_16k: NDArray[np.generic]) -> float:
    """Predict the opinion (1 to 5) by the P.808 network, from the windows of `overall_quality`."""
    import librosa

    scores = []
    for window in _windows(wave_16k):
        mel = librosa.feature.melspectrogram(y=window[:-160], sr=EAR_RATE, n_fft=321, hop_length=160, n_mels=120)
        features = ((librosa.power_to_db(mel, ref=np.max) + 40) / 40).T.astype(np.float32)
        scores.append(_network("model_v8").run(None, {"input_1": features[None]})[0][0][0])
    return float(np.mean(scores)) if scores else float("nan")


def _windows(wave_16k: NDArray[np.generic]) -> list[Wave]:
    scale = 32768.0 if np.issubdtype(wave_16k.dtype, np.integer) else 1.0
    wave = np.clip(wave_16k.astype(np.float32) / scale, -1, 1)
    if 0 < len(wave) < WINDOW:
        wave = np.resize(wave, WINDOW)
    return [wave[start : start + WINDOW] for start in range(0, len(wave) - WINDOW + 1, EAR_RATE)]


@functools.cache
def _network(name: str) -> Any:
    import onnxruntime  # type: ignore[import-not-found,import-untyped,unused-ignore]

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1  # several processes may run at once
    path = package_folder("speechmos") / "dnsmos_models" / f"{name}.onnx"
    return onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
