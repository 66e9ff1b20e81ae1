"""The compile backend chosen for each platform; a failing compiler costs only speed."""

from __future__ import annotations

import logging
import platform
import shutil

import pytest
import torch

from s1_mini.runtime import loader
from s1_mini.runtime.loader import Compiler, choose_backend
from s1_mini.types import Choice


@pytest.mark.parametrize(
    ("switch", "backend", "system", "device", "expected"),
    [
        ("auto", "auto", "Linux", "cuda", "inductor"),
        ("auto", "auto", "Windows", "cuda", "eager"),
        ("auto", "auto", "Darwin", "mps", "eager"),
        ("auto", "auto", "Linux", "cpu", "eager"),
        ("true", "auto", "Linux", "cpu", "eager"),
        ("true", "auto", "Windows", "cuda", "eager"),
        ("auto", "inductor", "Windows", "cuda", "inductor"),
        ("auto", "eager", "Linux", "cuda", "eager"),
        ("auto", "off", "Linux", "cuda", "off"),
        ("false", "inductor", "Linux", "cuda", "off"),
    ],
)
def test_the_choice_follows_switch_backend_platform_and_device(
    switch: str, backend: str, system: str, device: str, expected: str, *, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(platform, "system", lambda: system)
    monkeypatch.setattr(loader, "HAS_TRITON", True)

    choice = choose_backend(switch, backend, device)

    assert choice.value == expected
    assert choice.reason


def test_without_triton_the_choice_is_eager_and_says_what_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(platform, "system", lambda: "Linux")
    monkeypatch.setattr(loader, "HAS_TRITON", False)

    choice = choose_backend("auto", "auto", "cuda")

    assert choice.value == "eager"
    assert "Triton" in choice.reason


def test_eager_and_off_run_the_function_itself() -> None:
    for value in ("eager", "off"):
        assert Compiler(Choice(value, "test"))(torch.sin) is torch.sin


def test_a_failing_compile_falls_back_to_eager_and_says_so(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def broken_compile(_function: object, **_options: object) -> object:
        def fail(*_arguments: object) -> None:
            raise RuntimeError("no code for you\nlong details")

        return fail

    monkeypatch.setattr(torch, "compile", broken_compile)
    compiler = Compiler(Choice("inductor", "test"))
    double = compiler(lambda x: 2 * x)

    with caplog.at_level(logging.WARNING):
        results = [double(torch.ones(1)).item() for _ in range(2)]

    assert results == [2.0, 2.0]
    assert compiler.choice == Choice("eager", "inductor failed: no code for you")
    assert [record.message for record in caplog.records] == ["compilation failed, running eagerly: no code for you"]


def test_nothing_is_compiled_before_it_is_called(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[object] = []
    monkeypatch.setattr(torch, "compile", lambda function, **_options: asked.append(function) or function)

    double = Compiler(Choice("inductor", "test"))(lambda x: 2 * x)
    before = len(asked)
    results = [double(torch.ones(1)).item() for _ in range(3)]

    assert before == 0
    assert results == [2.0] * 3
    assert len(asked) == 1


def test_an_error_of_the_function_itself_is_not_hidden(monkeypatch: pytest.MonkeyPatch) -> None:
    def wrong(_x: torch.Tensor) -> torch.Tensor:
        raise RuntimeError("mine")

    monkeypatch.setattr(torch, "compile", lambda function, **_options: function)
    with pytest.raises(RuntimeError, match="mine"):
        Compiler(Choice("inductor", "test"))(wrong)(torch.ones(1))


@pytest.mark.long
@pytest.mark.skipif(not any(map(shutil.which, ("c++", "g++", "clang++"))), reason="needs a C++ compiler")
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_inductor_computes_what_eager_computes() -> None:
    def feed(x: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.silu(x) * x.tanh()

    compiler = Compiler(Choice("inductor", "test"))
    x = torch.linspace(-2, 2, 64)

    assert torch.allclose(compiler(feed)(x), feed(x), atol=1e-6)
    assert compiler.choice.value == "inductor"
