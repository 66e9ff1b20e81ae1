"""Sampling defaults in a checkpoint's `generation_config.json`, without torch."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from s1_mini.layers.json_config import read_flag, read_number, read_size
from s1_mini.types import SamplingParams
from s1_mini.weights.directory import read_json


def read_generation(directory: Path, published: SamplingParams, *, prefix: str = "") -> SamplingParams:
    """Return the values of the keys that begin with `prefix`; absent keys, or an absent file, have `published` values.

    Null is as absent. If the file turns sampling off, the temperature is 0. Raises `CheckpointError`.
    """
    path = directory / "generation_config.json"
    stored = read_json(path) if path.exists() else {}
    values = {key: value for key, value in stored.items() if value is not None}

    def entry(key: str) -> tuple[str, Any]:
        return f"{path.name}: {prefix}{key}", values.get(prefix + key, getattr(published, key))

    def real(key: str, most: float, *, least: float = 0.0) -> float:
        return read_number(*entry(key), lambda x: least <= x <= most, f"a number from {least:g} to {most:g}")

    def count(key: str) -> int:
        return read_size(*entry(key), 2**17, least=0)

    flag = f"{prefix}dosample" if prefix else "do_sample"
    samples = read_flag(f"{path.name}: {flag}", values.get(flag, True))
    return SamplingParams(
        temperature=real("temperature", 2) if samples else 0.0,
        top_p=real("top_p", 1, least=1e-6),
        repetition_penalty=real("repetition_penalty", 2, least=1e-6),
        max_new_tokens=max(1, count("max_new_tokens")),
        top_k=count("top_k"),
    )
