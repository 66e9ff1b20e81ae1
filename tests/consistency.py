"""Audio of an engine that is the same however it is requested."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from leaks import leaks
from s1_mini import ProductionTTSEngine


def assert_consistent(
    engine: ProductionTTSEngine,
    texts: Sequence[str],
    *,
    profiles: Sequence[str] = ("ttfa",),
    tolerance: float = 0.0,
    **options: Any,
) -> None:
    """Assert that a batch equals single requests, and that streams equal them within `tolerance`."""
    alone = [engine.generate(text, **options).audio for text in texts]
    together = engine.generate_batch(texts, **options).results

    for text, wave, other in zip(texts, alone, together, strict=True):
        assert len(wave)
        assert np.array_equal(wave, other.audio)
        for profile in profiles:
            chunks = engine.stream(text, chunk_profile=profile, **options)
            np.testing.assert_allclose(np.concatenate([chunk.audio for chunk in chunks]), wave, rtol=0, atol=tolerance)
    assert leaks(engine._running.synthesizer.core.scheduler) == []
