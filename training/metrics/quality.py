"""Does it sound clean: DNSMOS P.835 overall (Reddy et al., 2022, arXiv 2110.01763), a predicted opinion of 1 to 5.

Runs the network inside the speechmos wheel with onnxruntime directly: speechmos' own code adds librosa and pandas for
figures that nobody reads here. DNSMOS was made to judge noise suppression: compare with the teacher's, do not boast.
Waves are mono, int16 or float in [-1, 1], at 16 kHz.
"""

from __future__ import annotations

from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

RATE_HZ = 16_000
WINDOW = 144_160  # 9.01 s, the network's input
OVERALL = np.poly1d((-0.06766283, 1.11546468, 0.04602535))  # speechmos 0.0.1.1: raw output to opinion


def overall_quality(wave_16k: NDArray[np.generic]) -> float:
    """Predict the overall opinion (1 to 5) of one recording: the mean of its 9.01 s windows, one a second.

    A shorter recording is repeated up to 9.01 s and judged once. (speechmos doubles it until it is long enough and
    judges every second's shift: up to eight times the work.) NaN for a recording without samples.
    """
    scale = 32768.0 if np.issubdtype(wave_16k.dtype, np.integer) else 1.0
    wave = np.clip(wave_16k.astype(np.float32) / scale, -1, 1)
    if not len(wave):
        return float("nan")
    if len(wave) < WINDOW:
        wave = np.resize(wave, WINDOW)
    windows = [wave[start : start + WINDOW] for start in range(0, len(wave) - WINDOW + 1, RATE_HZ)]
    # one by one: the same figures whatever the number of windows
    raw = [_network().run(None, {"input_1": window[None]})[0][0][2] for window in windows]
    return float(np.mean(OVERALL(np.array(raw, np.float64))))


@cache
def _network() -> Any:
    import onnxruntime  # type: ignore[import-not-found,import-untyped,unused-ignore]

    spec = find_spec("speechmos")
    if spec is None or spec.origin is None:
        raise ModuleNotFoundError(
            "speechmos is missing; pip install -r recipes/voice/requirements.txt", name="speechmos"
        )
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1  # several processes may listen
    path = Path(spec.origin).parent / "dnsmos_models" / "sig_bak_ovr.onnx"
    return onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
