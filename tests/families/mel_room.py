"""Reference SpeechT5: `transformers` with the same random weights, dropout disabled or with given masks."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers import SpeechT5Config, SpeechT5ForTextToSpeech, SpeechT5HifiGan, SpeechT5HifiGanConfig
from transformers.initialization import no_init_weights
from transformers.models.speecht5.modeling_speecht5 import SpeechT5SpeechDecoderPrenet

from s1_mini.families.base import Placement
from s1_mini.families.mel.loaded import LoadedMel, open_mel
from s1_mini.families.mel.model import MelModel, MelState
from s1_mini.families.mel.random import SIZES, random_model, random_vocoder, write_random_checkpoint
from s1_mini.families.mel.settings import MelSettings
from s1_mini.families.mel.verify import open_state, step_alone
from s1_mini.weights.directory import read_json

CPU = Placement(torch.device("cpu"), torch.float32, torch.float32)
TEXT = "Hello there, this is a small test."


def original(size: str, seed: int) -> SpeechT5ForTextToSpeech:
    """The reference model with the weights of a random checkpoint."""
    with no_init_weights():  # the full model initialises for 2 s
        model = SpeechT5ForTextToSpeech(SpeechT5Config(**SIZES[size][0])).eval()
    lacking = model.load_state_dict(random_model(SIZES[size][0], seed), strict=False)
    assert not lacking.missing_keys
    assert all(name.endswith(".pe") for name in lacking.unexpected_keys)
    return model


def original_vocoder(size: str, seed: int) -> SpeechT5HifiGan:
    """The reference vocoder of the same checkpoint."""
    vocoder = SpeechT5HifiGan(SpeechT5HifiGanConfig(**SIZES[size][1])).eval()
    vocoder.load_state_dict(random_vocoder(SIZES[size][1], seed + 1))
    return vocoder


def opened(directory: Path, **settings: Any) -> LoadedMel:
    """The s1_mini model, loaded from a directory."""
    return open_mel(directory, CPU, MelSettings(**settings))


def written(directory: Path, *, size: str = "tiny", seed: int = 0, form: Any = "compact") -> Path:
    """A random checkpoint."""
    write_random_checkpoint(directory, size=size, form=form, seed=seed)
    return directory


def follow_text(directory: Path, layer: int = 1, head: int = 0, alignment: dict[str, Any] | None = None) -> float:
    """Change a random checkpoint so that a head of its decoder follows the text; return the steps for each token.

    Encoder and decoder pass on the sinusoids of positions. The head's queries and keys are those of successive
    frequencies, whose ratio is the number of tokens for each step. `alignment` is added to the config.
    """
    path, config = directory / "model.safetensors", read_json(directory / "config.json")
    tensors, width = load_file(path), config["hidden_size"]
    size = width // config["decoder_attention_heads"]
    for name, tensor in tensors.items():
        if name.endswith(("norm.weight", "alpha")):
            tensor.fill_(1.0)
        elif any(
            part in name for part in ("out_proj", "output_dense", "embed_tokens", "prenet.final_layer", "norm.bias")
        ):
            tensor.zero_()
    joined = "decoder.prenet.speaker_embeds_layer"
    tensors[f"{joined}.weight"] = torch.eye(width, width + config["speaker_embedding_dim"])
    tensors[f"{joined}.bias"].fill_(2.0)  # keeps positions above 0, for ReLU
    attention = f"decoder.wrapped_decoder.layers.{layer}.encoder_attn"
    query, keys = tensors[f"{attention}.q_proj.weight"], tensors[f"{attention}.kv_proj.weight"]
    rows = slice(head * size, (head + 1) * size)
    query[rows], keys[rows] = 8 * torch.eye(width)[2 : size + 2], torch.eye(width)[:size]
    tensors[f"{attention}.q_proj.bias"].zero_()
    tensors[f"{attention}.kv_proj.bias"].zero_()
    tensors["speech_decoder_postnet.prob_out.weight"].zero_()
    tensors["speech_decoder_postnet.prob_out.bias"].fill_(9.0)  # it ends as soon as it may
    save_file(tensors, path)
    (directory / "config.json").write_text(json.dumps(config | ({"alignment": alignment} if alignment else {})))
    return 10_000 ** (2 / width)


@contextmanager
def dropout(patch: pytest.MonkeyPatch, masks: Tensor | None) -> Iterator[None]:
    """Disable the reference's dropout, or apply `masks` [S, layers, U] to its whole prefix at every step."""
    calls = iter(range(2**30))

    def drop(self: SpeechT5SpeechDecoderPrenet, x: Tensor, _: float) -> Tensor:
        if masks is None:
            return x
        layer = next(calls) % len(self.layers)
        return x * masks[: x.shape[1], layer].float() * 2

    with patch.context() as patched:
        patched.setattr(SpeechT5SpeechDecoderPrenet, "_consistent_dropout", drop)
        yield


def speaker(seed: int = 0, size: int = 512) -> Tensor:
    """A speaker vector [N]."""
    return torch.randn(size, generator=torch.Generator().manual_seed(seed))


def run_free(model: MelModel, tokens: Tensor, vector: Tensor, *, masks: Tensor | None = None, most: int) -> Tensor:
    """Run the decoder until it stops: the mel [F, M] before the post-net."""
    case = {"tokens": tokens, "speaker": vector} | ({} if masks is None else {"masks": masks})
    state, rows = open_state(model, case, most), []
    while len(rows) < most and not (rows and rows[-1][-2]):
        rows.append(step_alone(model, state))
    return torch.stack(rows)[:, :-2].reshape(-1, model.config.num_bins)


def inputs_of(mel: Tensor, frames_per_step: int = 2) -> Tensor:
    """Decoder inputs [S, M] that produced a mel [F, M]."""
    return torch.cat((torch.zeros(1, mel.shape[1]), mel[frames_per_step - 1 :: frames_per_step][:-1]))


def forced(model: MelModel, state: MelState, frames: Tensor) -> Tensor:
    """Run along inputs [S, M], ignoring the output: the mel [F, M]."""
    rows = []
    for frame in frames:
        state.frame[0] = frame
        rows.append(step_alone(model, state))
    return torch.stack(rows)[:, :-2].reshape(-1, model.config.num_bins)
