"""The public API: names, keywords, and the cost of importing the package."""

from __future__ import annotations

import inspect
import os
import re
import subprocess
import sys
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import s1_mini
from s1_mini import EngineConfig, ParameterError, ProductionTTSEngine, SamplingParams, TTSRequest, exceptions


def test_the_public_names_are_these() -> None:
    errors = [name for name, value in vars(exceptions).items() if isinstance(value, type)]

    assert sorted({*s1_mini.__all__} - {*errors}) == [
        "AudioChunk",
        "AudioFormat",
        "BatchGenerationResponse",
        "ChunkProfile",
        "EngineConfig",
        "EngineState",
        "FinishReason",
        "GenerationFailure",
        "GenerationResponse",
        "GenerationResult",
        "ProductionTTSEngine",
        "Reference",
        "SamplingParams",
        "SpokenMark",
        "TTSRequest",
        "TextStream",
        "Timing",
        "VoiceInfo",
        "VoiceSource",
        "Word",
        "__version__",
    ]
    assert {*errors} <= {*s1_mini.__all__}
    assert all(hasattr(s1_mini, name) for name in s1_mini.__all__)


def test_an_unknown_name_is_an_attribute_error_that_lists_the_known_ones() -> None:
    with pytest.raises(AttributeError, match=r"it has .*EngineConfig"):
        _ = s1_mini.TTSEngine


INTEGERS = ("top_k", "max_new_tokens", "seed")


class Index:
    def __index__(self) -> int:
        return 8000


@pytest.mark.parametrize("number", [8000, np.int64(8000), np.uint16(8000), np.array(8000), torch.tensor(8000), Index()])
def test_whole_numbers_may_be_of_any_type_that_can_be_an_index(number: Any) -> None:
    sampling: Any = dict.fromkeys(INTEGERS, number)

    request = TTSRequest.of("Hi.", sample_rate=number, **sampling)
    config = EngineConfig(max_queue_size=number, request_timeout_s=number)

    given = [request.sample_rate, *request.sampling.values(), config.max_queue_size]
    assert [(type(each), each) for each in given] == [(int, 8000)] * 5
    assert [getattr(SamplingParams(**sampling), name) for name in INTEGERS] == [8000] * 3
    assert type(SamplingParams(**sampling).seed) is int
    assert config.request_timeout_s == 8000


@pytest.mark.parametrize("number", [0.5, np.float64(0.5), np.float32(0.5), np.float16(0.5), Fraction(1, 2)])
def test_numbers_may_be_of_any_real_type(number: Any) -> None:
    fields = ("temperature", "top_p", "repetition_penalty")

    request = TTSRequest.of("Hi.", speed=number, gain_db=number, **dict.fromkeys(fields, number))

    given = [request.speed, request.gain_db, *request.sampling.values(), EngineConfig(kv_cache_gb=number).kv_cache_gb]
    assert [(type(each), each) for each in given] == [(float, 0.5)] * 6


@pytest.mark.parametrize("value", [True, np.True_, "3", 3 + 0j, None.__class__, np.array([3, 3]), float("nan")])
@pytest.mark.parametrize("field", [*INTEGERS, "sample_rate", "speed", "gain_db", "temperature"])
def test_anything_else_is_not_a_number(field: str, value: Any) -> None:
    options: Any = {field: value}
    with pytest.raises(ParameterError, match=f"{field}: .* is not a "):
        TTSRequest.of("Hi.", **options)


def test_the_engine_has_the_methods_of_the_original_design_and_a_batch_its_keywords() -> None:
    for method in ("start", "stop", "generate", "stream", "generate_batch", "health_check"):
        assert callable(getattr(ProductionTTSEngine, method))
    keywords = inspect.signature(ProductionTTSEngine.generate_batch).parameters
    assert {"texts", "reference_audios", "reference_texts", "return_bytes"} <= set(keywords)


def test_options_shared_by_single_and_batch_calls_have_the_same_defaults() -> None:
    methods = ("stream", "stream_async", "generate", "generate_async", "generate_batch", "generate_batch_async")
    signatures = {name: inspect.signature(getattr(ProductionTTSEngine, name)).parameters for name in methods}

    for parameters in signatures.values():
        for name in parameters.keys() & signatures["generate"].keys() - {"self", "text", "options"}:
            assert parameters[name] == signatures["generate"][name]
    assert [*signatures["generate_async"]] == [*signatures["generate"]]
    assert [*signatures["generate_batch_async"]] == [*signatures["generate_batch"]]


def test_an_unknown_option_is_named_with_the_known_ones() -> None:
    with pytest.raises(TypeError, match=r"unknown option 'tempo'; available: .*voice, .*reference_text"):
        ProductionTTSEngine().stream("Hello.", tempo=2)


CONSUMER = """
import asyncio
from s1_mini import AudioChunk, EngineConfig, GenerationResponse, ProductionTTSEngine, S1MiniError, VoiceInfo

async def main() -> None:
    async with ProductionTTSEngine(EngineConfig(checkpoint_path="voice")) as engine:
        response: GenerationResponse = await engine.generate_async("Hello.", return_bytes=True)
        response.save("hello.mp3")
        print(len(response.audio), len(response.audio_bytes), response.audio.mean() + 1)
        chunks: list[AudioChunk] = [chunk async for chunk in engine.stream_async("Hello.")]
        voices: list[VoiceInfo] = engine.voices()
        print(sum(len(chunk.audio) for chunk in chunks), [voice.name.upper() for voice in voices])
        for result in engine.generate_batch(["One.", " "]).results:
            print(result.error.upper() if not result.success else result.audio.max())

try:
    asyncio.run(main())
except S1MiniError as error:
    print(error.code.upper())
"""


@pytest.mark.long
def test_a_program_that_uses_the_package_passes_mypy_strict(tmp_path: Path) -> None:
    """Types are not just Any: a missing name and a text in place of a number are reported."""
    wrong = 'ProductionTTSEngine().generate("Hello.", seed="1").loudness\n'
    (tmp_path / "good.py").write_text(CONSUMER, encoding="utf-8")
    (tmp_path / "bad.py").write_text(CONSUMER + wrong, encoding="utf-8")
    # the types of the package use those of numpy; mypy takes half a minute for torch's and others'
    only = "[mypy]\nstrict = True\nfollow_imports = skip\n[mypy-s1_mini.*,numpy.*]\nfollow_imports = normal\n"
    (tmp_path / "mypy.ini").write_text(only)
    command = [sys.executable, "-m", "mypy", "--cache-dir", os.devnull, "--no-error-summary", "good.py", "bad.py"]
    found = os.environ | {"PYTHONPATH": str(Path(s1_mini.__file__).parents[1])}

    said = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, env=found, check=False).stdout

    assert sorted(re.findall(r"^(\w+)\.py:.*\[([a-z-]+)\]$", said, re.MULTILINE)) == [
        ("bad", "arg-type"),
        ("bad", "attr-defined"),
    ], said
    assert len(said.splitlines()) == 2


def test_importing_the_package_loads_nothing_heavy() -> None:
    """Torch takes seconds to import, pydantic half a second; neither is imported before it is needed."""
    code = "import s1_mini, sys; print([m for m in ('torch', 'numpy', 'pydantic', 'typer') if m in sys.modules])"

    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)

    assert result.stdout.strip() == "[]"
