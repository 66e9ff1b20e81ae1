"""Random Qwen3-TTS checkpoints, voices for them, one whose attention follows the text, and a wait for a row."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file

from s1_mini import EngineConfig, ProductionTTSEngine
from s1_mini.core.request import StageSequence
from s1_mini.core.scheduler import Scheduler
from s1_mini.families.base import Placement
from s1_mini.families.qwen3.loaded import LoadedQwen3, open_qwen3
from s1_mini.families.qwen3.random import write_random
from s1_mini.families.qwen3.settings import Qwen3Settings
from s1_mini.families.qwen3.tokenizer import Qwen2Tokenizer
from s1_mini.families.qwen3.voice import CODES, VECTOR
from s1_mini.types import Voice
from s1_mini.weights.directory import read_json
from waiting import wait_until

CPU = Placement(torch.device("cpu"), torch.float32, torch.float32)
KINDS = {"custom_voice": "tiny", "base": "tiny-base", "voice_design": "tiny-design"}


def written(directory: Path, kind: str, seed: int = 0) -> Path:
    """A random checkpoint of a kind."""
    write_random(directory, size=KINDS[kind], form="published", seed=seed)
    return directory


def opened(directory: Path, **settings: Any) -> LoadedQwen3:
    return open_qwen3(directory, CPU, Qwen3Settings(**settings))


def config(directory: Path, **options: Any) -> EngineConfig:
    return EngineConfig(checkpoint_path=directory, max_batch_size=8, max_columns=512, compile="false", **options)


def scheduler_of(engine: ProductionTTSEngine) -> Scheduler:
    assert engine._running is not None
    return engine._running.synthesizer.core.scheduler


def waiting_row(engine: ProductionTTSEngine) -> StageSequence:
    """Return the only row of the model, once it waits for text."""
    scheduler = scheduler_of(engine)
    queue = scheduler.stages[0]

    def waits() -> bool:
        with scheduler._lock:  # so that no step starts between these looks at the queue
            return len(queue.running) == 1 and not queue.in_flight and not queue.running[0].can_step

    wait_until(waits)
    return queue.running[0]


def clone(loaded: LoadedQwen3, text: str = "Well, hello.", frames: int = 7, seed: int = 0) -> Voice:
    """A voice with a random vector and codes; without a transcript only the vector is used."""
    generator, config = torch.Generator().manual_seed(seed), loaded.config
    vector = torch.randn(config.backbone.dim, generator=generator)
    codes = torch.randint(config.code_size, (config.num_codebooks, frames), generator=generator)
    return Voice({VECTOR: vector, CODES: codes}, text)


LETTERS = "abc def ghi jkl"  # a text that has no letter twice
RATE = 0.5  # tokens that the head of `follow_text` advances in each frame
START = 63  # code of the frame before the first, as the beginning of speech


def follow_text(directory: Path, alignment: dict[str, Any] | None = None) -> Path:
    """Change a random checkpoint so that it counts its frames and head 2 of layer 1 follows `LETTERS`.

    Layers pass on their input: the angles of a text token (channels 0 to 7), the angles of a frame (8 to 15), and its
    number (16 to 31), which chooses the first code of the next frame. The head's keys are the angles of letters, its
    queries those of frames, in the channels that rotary positions turn least. `alignment` is added to the config.
    """
    path, values = directory / "model.safetensors", read_json(directory / "config.json")
    tensors, talker = {name: tensor.float() for name, tensor in load_file(path).items()}, values["talker_config"]
    prefix, last = "talker.model.", round(len(LETTERS) / RATE) + 1
    for name, tensor in tensors.items():
        if name.startswith(prefix) and name.endswith("norm.weight"):
            tensor.fill_(4.0 if "_norm" in name else 1.0)  # norms of queries and keys
        elif name.startswith("talker.") and any(part in name for part in ("o_proj", "down_proj", "embedding", "fc")):
            tensor.zero_()
    tensors["talker.codec_head.weight"].zero_()

    def angles(number: float, frequencies: list[int], turn: int) -> torch.Tensor:
        parts = 2 * torch.pi * number / turn * torch.tensor(frequencies)
        return torch.cat((parts.cos(), parts.sin()))

    tokenizer = Qwen2Tokenizer.from_directory(directory)
    for number, letter in enumerate(LETTERS):
        if letter != " ":
            row = tensors[f"{prefix}text_embedding.weight"][tokenizer.encode(letter)[0]]
            row[:8] = angles(number, [5, 3, 2, 1], 48)
    tensors["talker.text_projection.linear_fc1.weight"].copy_(torch.eye(24))
    tensors["talker.text_projection.linear_fc1.bias"].fill_(20.0)  # where SiLU is the identity
    tensors["talker.text_projection.linear_fc2.weight"][:24] = torch.eye(24)
    tensors["talker.text_projection.linear_fc2.bias"][:24] = -20.0
    codes, ends = tensors[f"{prefix}codec_embedding.weight"], tensors["talker.codec_head.weight"]
    numbers = [1, 2, 3, 5, 8, 13, 21, 29]
    for code, count in [(START, 0), (talker["codec_bos_id"], 0), *((code, code + 1) for code in range(last))]:
        codes[code, 8:16] = angles(count * RATE, [5, 3, 2, 1], 48)
        codes[code, 16:] = angles(count, numbers, 64)
    for count in range(last + 1):
        ends[count if count < last else talker["codec_eos_token_id"], 16:] = angles(count, numbers, 64)
    attention = f"{prefix}layers.1.self_attn."
    query, keys = (tensors[f"{attention}{each}_proj.weight"].zero_() for each in "qk")
    for half in (0, 1):
        rows = slice(8 * half + 4, 8 * half + 8)
        query[32:48][rows] = torch.eye(32)[8 + 4 * half : 12 + 4 * half]
        keys[16:32][rows] = torch.eye(32)[4 * half : 4 * half + 4]
    save_file(tensors, path)
    (directory / "config.json").write_text(json.dumps(values | ({"alignment": alignment} if alignment else {})))
    greedy = {"do_sample": False, "subtalker_dosample": False, "repetition_penalty": 1.0}
    (directory / "generation_config.json").write_text(json.dumps(greedy))
    return directory
