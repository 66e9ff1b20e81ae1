"""Write a checkpoint with random weights, in the published or the compact form. It generates noise.

The scale of the weights keeps activations near one, and the stop probability small but positive. With torch's default
initialization, speech would end at once, and its amplitude would be 1e-11.
"""

from __future__ import annotations

import io
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import sentencepiece
import torch
from torch import Tensor, nn

from s1_mini.codecs.hifigan.config import HifiGanConfig
from s1_mini.codecs.hifigan.model import HifiGan
from s1_mini.families.base import Form
from s1_mini.families.mel import weights
from s1_mini.families.mel.config import MelConfig
from s1_mini.families.mel.network import MelNetwork, position_table
from s1_mini.families.mel.settings import FOLDERS
from s1_mini.families.mel.tokenizer import FILE
from s1_mini.families.mel.voice import SPEAKER
from s1_mini.types import Voice
from s1_mini.voices.library import FOLDER, write_voice
from s1_mini.weights.fit import skeleton
from s1_mini.weights.write import new_directory, write_json, write_tensors

FULL_MODEL: dict[str, Any] = {
    "model_type": "speecht5",
    "architectures": ["SpeechT5ForTextToSpeech"],
    "vocab_size": 81,
    "hidden_size": 768,
    "encoder_layers": 12,
    "encoder_attention_heads": 12,
    "encoder_ffn_dim": 3072,
    "decoder_layers": 6,
    "decoder_attention_heads": 12,
    "decoder_ffn_dim": 3072,
    "hidden_act": "gelu",
    "layer_norm_eps": 1e-5,
    "num_mel_bins": 80,
    "reduction_factor": 2,
    "speech_decoder_prenet_layers": 2,
    "speech_decoder_prenet_units": 256,
    "speech_decoder_prenet_dropout": 0.5,
    "speech_decoder_postnet_layers": 5,
    "speech_decoder_postnet_units": 256,
    "speech_decoder_postnet_kernel": 5,
    "speaker_embedding_dim": 512,
    "max_text_positions": 600,
    "max_speech_positions": 1876,
    "encoder_max_relative_position": 160,
    "bos_token_id": 0,
    "pad_token_id": 1,
    "eos_token_id": 2,
}
TINY_MODEL = FULL_MODEL | {
    "hidden_size": 32,
    "encoder_layers": 2,
    "encoder_attention_heads": 2,
    "encoder_ffn_dim": 64,
    "decoder_layers": 2,
    "decoder_attention_heads": 2,
    "decoder_ffn_dim": 64,
    "speech_decoder_prenet_units": 32,
    "speech_decoder_postnet_units": 32,
    "encoder_max_relative_position": 16,
}
FULL_VOCODER: dict[str, Any] = {
    "model_type": "hifigan",
    "model_in_dim": 80,
    "sampling_rate": 16_000,
    "upsample_initial_channel": 512,
    "upsample_rates": [4, 4, 4, 4],
    "upsample_kernel_sizes": [8, 8, 8, 8],
    "resblock_kernel_sizes": [3, 7, 11],
    "resblock_dilation_sizes": [[1, 3, 5], [1, 3, 5], [1, 3, 5]],
    "leaky_relu_slope": 0.1,
    "normalize_before": True,
}
TINY_VOCODER = FULL_VOCODER | {"upsample_initial_channel": 32}
SIZES = {"tiny": (TINY_MODEL, TINY_VOCODER), "full": (FULL_MODEL, FULL_VOCODER)}
VOICES = ("first", "second")  # names of the voices; the first voice is the default

_END_BIAS, _END_SPREAD = -3.0, 2.0  # mean and standard deviation of stop logits
_CHARACTERS = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ.,;:!?'\"-()"


def write_random_checkpoint(directory: Path, *, size: str = "tiny", form: Form = "compact", seed: int = 0) -> None:
    """Write a new checkpoint directory with two voices.

    Raises `CheckpointFileError` if `directory` exists and is not empty, or cannot be written.
    """
    model, vocoder = SIZES[size]
    tensors, sound = random_model(model, seed), random_vocoder(vocoder, seed + 1)
    with new_directory(directory) as target:
        folder = target / FOLDERS[0]
        folder.mkdir()
        write_json(target / "config.json", model)
        write_json(folder / "config.json", vocoder)
        (target / FILE).write_bytes(character_model())
        if form == "published":
            torch.save(tensors, target / "pytorch_model.bin")
            torch.save(sound, folder / "pytorch_model.bin")
        else:
            write_tensors(target / "model.safetensors", weights.translate(tensors))
            write_tensors(folder / "model.safetensors", sound)
        write_voices(target / FOLDER, model["speaker_embedding_dim"], seed)


def random_model(config: dict[str, Any], seed: int = 0) -> dict[str, Tensor]:
    """Return random tensors for all published names of the model."""
    network = skeleton(lambda: MelNetwork(MelConfig.from_json(config)))
    generator = torch.Generator().manual_seed(seed)
    return {name: tensor for pair in _fill(network, generator) for name, tensor in _published(*pair, config, generator)}


def random_vocoder(config: dict[str, Any], seed: int = 0) -> dict[str, Tensor]:
    """Return random tensors for all published names of the vocoder."""
    vocoder = skeleton(lambda: HifiGan(HifiGanConfig.from_json(config)))
    generator, rate = torch.Generator().manual_seed(seed), config["upsample_rates"][0]
    tensors = {}
    for name, parameter in vocoder.named_parameters():
        tensor = torch.empty(parameter.shape)
        if name == "scale":
            tensor.uniform_(0.8, 1.2, generator=generator)
        elif parameter.dim() < 3:
            tensor.normal_(0.0, 0.1, generator=generator)
        else:
            fan_in = len(parameter) * parameter.shape[2] // rate if "upsampler" in name else parameter[0].numel()
            gain = 0.5 if "convs2" in name else 1.2  # the output of a `convs2` is added to the input of its pair
            tensor.normal_(0.0, gain * fan_in**-0.5, generator=generator)
        tensors[name] = tensor
    return tensors


def character_model() -> bytes:
    """Return a sentencepiece model of single characters, with SpeechT5's ids of special tokens."""
    content = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter([_CHARACTERS] * 4),
        model_writer=content,
        model_type="char",
        vocab_size=79,
        hard_vocab_limit=False,
        character_coverage=1.0,
        bos_id=0,
        pad_id=1,
        eos_id=2,
        unk_id=3,
        minloglevel=2,
    )
    return content.getvalue()


def write_voices(folder: Path, size: int, seed: int) -> None:
    """Write random speaker vectors into a new folder."""
    folder.mkdir()
    generator = torch.Generator().manual_seed(seed)
    for name in VOICES:
        vector = torch.empty(size).normal_(0.0, 1.0, generator=generator)
        description = f"random vector: the {name}"
        write_voice(folder, name, Voice({SPEAKER: vector}, ""), description=description, is_default=name == VOICES[0])


def _fill(network: nn.Module, generator: torch.Generator) -> Iterator[tuple[str, Tensor]]:
    for name, parameter in network.named_parameters():
        tensor = torch.empty(parameter.shape)
        if name.endswith("alpha"):
            tensor.fill_(0.5)
        elif name.endswith("norm.weight"):
            tensor.uniform_(0.9, 1.1, generator=generator)
        elif "prob_out" in name:
            spread = _END_SPREAD * parameter.shape[-1] ** -0.5
            tensor.normal_(0.0, spread, generator=generator) if parameter.dim() > 1 else tensor.fill_(_END_BIAS)
        elif name.endswith("bias"):
            tensor.normal_(0.0, 0.05, generator=generator)
        else:
            fan_in = 1 if "embed_tokens" in name else parameter[0].numel()
            tensor.normal_(0.0, fan_in**-0.5, generator=generator)
        yield name, tensor


def _published(
    name: str, tensor: Tensor, config: dict[str, Any], generator: torch.Generator
) -> Iterator[tuple[str, Tensor]]:
    """Yield the published tensors for a tensor of the network: separate projections, batch norms, position tables."""
    stem, _, kind = name.rpartition(".")
    if name.startswith("speech_decoder_postnet.layers."):
        if kind == "weight":
            yield name, tensor
        else:
            norm = name.replace("conv.bias", "batch_norm.")
            count = len(tensor)
            yield f"{norm}weight", torch.empty(count).uniform_(0.5, 1.5, generator=generator)
            yield f"{norm}bias", tensor
            yield f"{norm}running_mean", torch.empty(count).normal_(0.0, 0.1, generator=generator)
            yield f"{norm}running_var", torch.empty(count).uniform_(0.5, 1.5, generator=generator)
            yield f"{norm}num_batches_tracked", torch.tensor(7)
        return
    name = name if name.startswith("speech_") else weights.PREFIX + name
    letters = stem.rpartition(".")[2].removesuffix("_proj")
    if letters in {"qkv", "kv"}:
        for letter, part in zip(letters, tensor.chunk(len(letters)), strict=True):
            yield name.replace(f".{letters}_proj.", f".{letter}_proj."), part.clone()
        return
    yield name, tensor
    if kind == "alpha":
        length = config["max_text_positions" if "encoder.prenet" in name else "max_speech_positions"]
        yield name.replace(".alpha", ".pe"), position_table(length, config["hidden_size"]).unsqueeze(0)
