"""What users may rely on: the names, their keywords, and how little importing costs."""

from __future__ import annotations

import inspect
import subprocess
import sys

import pytest

import s1_mini
from s1_mini import ProductionTTSEngine


def test_the_public_names_are_these() -> None:
    assert sorted(s1_mini.__all__) == [
        "AudioChunk",
        "BatchGenerationResponse",
        "EngineConfig",
        "GenerationResponse",
        "ProductionTTSEngine",
        "Reference",
        "S1MiniError",
        "SamplingParams",
        "TTSRequest",
        "__version__",
    ]
    assert all(hasattr(s1_mini, name) for name in s1_mini.__all__)


def test_a_name_that_is_not_there_is_an_attribute_error_that_lists_what_is() -> None:
    with pytest.raises(AttributeError, match=r"it has .*EngineConfig"):
        _ = s1_mini.TTSEngine


@pytest.mark.parametrize("method", ["start", "stop", "generate", "stream", "generate_batch", "health_check"])
def test_the_engine_has_the_seeds_methods(method: str) -> None:
    assert callable(getattr(ProductionTTSEngine, method))


def test_a_batch_takes_the_seeds_keywords() -> None:
    parameters = inspect.signature(ProductionTTSEngine.generate_batch).parameters

    assert {"texts", "reference_audios", "reference_texts", "return_bytes"} <= set(parameters)


def test_importing_the_package_loads_nothing_heavy() -> None:
    """Torch takes seconds, pydantic half of one; neither is loaded before it is needed."""
    code = "import s1_mini, sys; print([m for m in ('torch', 'numpy', 'pydantic', 'typer') if m in sys.modules])"

    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)

    assert result.stdout.strip() == "[]"
