"""Load tensors into a module strictly: every parameter is set, every tensor is used, and all shapes match."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeVar

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from s1_mini.exceptions import CheckpointMismatchError
from s1_mini.weights.files import Tensors
from s1_mini.weights.int8 import dequantized, is_int8, without_scales

Module = TypeVar("Module", bound=nn.Module)

_MAX_NAMES = 6


def skeleton(build: Callable[[], Module]) -> Module:
    """Build a module on the meta device, so that its parameters take no memory."""
    with torch.device("meta"), _NoValues():
        return build()


def count(*modules: nn.Module) -> int:
    """Return the total number of parameters."""
    return sum(weight.numel() for module in modules for weight in module.parameters())


class _NoValues(TorchFunctionMode):
    """Skip the initialization of meta parameters, because torch would load sympy for it (1 s and 65 MB)."""

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if getattr(func, "__module__", "") == "torch.nn.init":
            return args[0] if args else (kwargs or {})["tensor"]
        return func(*args, **(kwargs or {}))


def strip_prefix(tensors: Tensors, prefix: str) -> dict[str, Tensor]:
    """Remove `prefix`, which training wrappers add, from the names that begin with it."""
    return rename(tensors, lambda name: name.removeprefix(prefix))


def below_prefix(tensors: Tensors, prefix: str) -> dict[str, Tensor]:
    """Return only the tensors whose names begin with `prefix`, without it."""
    return {name.removeprefix(prefix): tensor for name, tensor in tensors.items() if name.startswith(prefix)}


def rename(tensors: Tensors, new_name: Callable[[str], str]) -> dict[str, Tensor]:
    """Rename every tensor. Raises `CheckpointMismatchError` if two tensors would get the same name."""
    renamed: dict[str, Tensor] = {}
    for name, tensor in tensors.items():
        if new_name(name) in renamed:
            raise CheckpointMismatchError(f"two tensors of the file map to {new_name(name)}; one of them is {name}")
        renamed[new_name(name)] = tensor
    return renamed


def as_pairs(weight: Tensor, head_dim: int) -> Tensor:
    """Reorder the rows of each head of queries or keys so that rows i and i + D / 2, a rotary pair, are neighbours."""
    return weight.unflatten(0, (-1, 2, head_dim // 2)).transpose(1, 2).reshape(weight.shape)


def fit(module: Module, tensors: Tensors, *, source: str, dtype: torch.dtype, device: torch.device) -> Module:
    """Load `tensors` into a `module` from `skeleton`, and return it.

    Tensors that already have `dtype` and `device` are not copied; int8 weights are dequantized one by one.
    Raises `CheckpointMismatchError`.
    """
    check_fit(module, tensors, source=source)
    ready = {name: dequantized(tensors, name, dtype, device) for name, _ in module.named_parameters()}
    module.load_state_dict(ready, strict=True, assign=True)
    return module.requires_grad_(False).eval()


def check_fit(module: nn.Module, tensors: Tensors, *, source: str) -> None:
    """Raise `CheckpointMismatchError` with the missing, extra, misshapen and non-floating tensors of `source`."""
    check_shapes(
        {name: tuple(parameter.shape) for name, parameter in module.named_parameters()}, tensors, source=source
    )


def check_shapes(expected: Mapping[str, tuple[int, ...]], tensors: Tensors, *, source: str) -> None:
    """Raise `CheckpointMismatchError` unless the tensors have the expected names and shapes; see `check_fit`."""
    stored = {name: tuple(tensor.shape) for name, tensor in without_scales(tensors, source).items()}
    common = [name for name in expected if name in stored]
    faults = {
        "not floating point": [n for n in stored if not (tensors[n].is_floating_point() or is_int8(n, tensors))],
        "missing": [n for n in expected if n not in stored],
        "not part of this architecture": [n for n in stored if n not in expected],
        "misshapen": [f"{n} {stored[n]}, expected {expected[n]}" for n in common if stored[n] != expected[n]],
    }
    messages = [
        f"{_some(names)} {'is' if len(names) == 1 else 'are'} {what}" for what, names in faults.items() if names
    ]
    if messages:
        raise CheckpointMismatchError(f"{source} does not match its config: {'; '.join(messages)}")


def _some(names: list[str]) -> str:
    more = len(names) - _MAX_NAMES
    return ", ".join(names[:_MAX_NAMES]) + (f" and {more} more" if more > 0 else "")
