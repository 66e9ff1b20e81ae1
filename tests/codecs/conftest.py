"""Formats of compiled convolutions."""

from __future__ import annotations

from typing import Any

import pytest


@pytest.fixture(params=[False, True], ids=["float32", "int16"])
def in_int16(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> bool:
    """Run a test without and with compiled convolutions in int16."""
    compiled: Any = pytest.importorskip(
        "s1_mini.codecs.causal.compiled", reason="numba has no wheels for this platform"
    )
    uses_int16: bool = request.param
    if uses_int16 and not compiled.HAS_VNNI:
        pytest.skip("needs a processor with AVX-512 VNNI")
    monkeypatch.setattr(compiled, "HAS_VNNI", uses_int16)
    return uses_int16
