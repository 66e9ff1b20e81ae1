"""Translate the published names of an S1 checkpoint into the network's, and fit them strictly."""

from __future__ import annotations

import re
import reprlib
from collections.abc import Mapping
from pathlib import Path

import torch
from torch import Tensor

from s1_mini.exceptions import CheckpointMismatchError
from s1_mini.families.s1.config import S1Config
from s1_mini.families.s1.network import S1Network
from s1_mini.families.s1.settings import Heads
from s1_mini.families.s1.tokenizer import S1Tokenizer, Vocabulary, read_vocabulary
from s1_mini.weights.directory import read_json
from s1_mini.weights.eight import SUFFIX
from s1_mini.weights.fit import check_fit, fit, rename, skeleton, strip_prefix

_JOINED = ("wq", "wk", "wv")
_LEGACY = re.compile(r"\.w[qkv]\.")


def translate(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return tensors by the network's names: wrappers' prefixes off, `audio_*` ignored, legacy wq/wk/wv joined.

    Idempotent. Siblings' prefixes (`text_model.model.`, `audio_decoder.`) are translated too (upstream's S2 loader).
    """
    named = strip_prefix(strip_prefix(tensors, "text_model.model."), "model.")
    if not any(name.startswith("fast_") for name in named):
        named = rename(named, _sibling_name)
    named = {name: tensor for name, tensor in named.items() if "audio_" not in name}
    for name in [name for name in named if ".wq." in name]:
        named[name.replace(".wq.", ".wqkv.")] = _join(named, name)
    return named


def joined_name(name: str) -> str:
    """Return the name of the tensor that legacy wq, wk and wv become, any other name as it is."""
    return _LEGACY.sub(".wqkv.", name)


def _join(named: dict[str, Tensor], name: str) -> Tensor:
    parts = [name.replace(".wq.", f".{part}.") for part in _JOINED]
    missing = [part for part in parts if part not in named]
    if missing:
        raise CheckpointMismatchError(f"legacy attention weights are incomplete: {', '.join(missing)} missing")
    if name.replace(".wq.", ".wqkv.") in named:
        raise CheckpointMismatchError(f"attention weights are there joined and as {name}")
    tensors = [named.pop(part) for part in parts]
    if len({tensor.shape[1:] for tensor in tensors}) > 1 or tensors[0].dim() == 0:
        raise CheckpointMismatchError(f"legacy attention weights {', '.join(parts)} do not fit together")
    return torch.cat(tensors)


def _sibling_name(name: str) -> str:
    if not name.startswith("audio_decoder."):
        return name
    rest = name.removeprefix("audio_decoder.")
    return rest if rest.startswith("codebook_embeddings.") else f"fast_{rest}"


def _tie(config: S1Config, named: dict[str, Tensor], source: str) -> None:
    """Use the embeddings as a tied head. A head of its own beside them contradicts the config."""
    if not config.tie_word_embeddings or "embeddings.weight" not in named:
        return
    if "output.weight" not in named and "embeddings.weight" + SUFFIX in named:
        named["output.weight" + SUFFIX] = named["embeddings.weight" + SUFFIX]
    own = named.setdefault("output.weight", named["embeddings.weight"])
    if own is not named["embeddings.weight"] and not torch.equal(own, named["embeddings.weight"]):
        raise CheckpointMismatchError(
            f"{source}: config.json ties the head to the embeddings, but the file has another"
        )


def build_network(
    config: S1Config,
    tokenizer: S1Tokenizer,
    tensors: Mapping[str, Tensor],
    *,
    heads: Heads,
    residual_codes: int | None,
    dtype: torch.dtype,
    device: torch.device,
    source: str,
) -> S1Network:
    """Build the network with only the head rows that can be sampled.

    `residual_codes` is how many codes the codec's residual codebooks have, if fewer than the model's.
    Raises `CheckpointMismatchError` where config, vocabulary and weights contradict each other.
    """
    _check_vocabulary(config, tokenizer)
    named = translate(tensors)
    _tie(config, named, source)
    main_rows, residual_rows = config.vocab_size, config.residual_codebook_size
    if heads == "restricted":
        rows = [*range(tokenizer.semantic_begin, tokenizer.semantic_end + 1), tokenizer.control("im_end")]
        main_rows, residual_rows = len(rows), min(residual_rows, residual_codes or residual_rows)
        _keep_rows(named, "output.weight", config.vocab_size, rows, source)
    _keep_rows(named, "fast_output.weight", config.codebook_size, slice(residual_rows), source)
    with skeleton():
        network = S1Network(config, main_rows=main_rows, residual_rows=residual_rows)
    fit(network, named, source=source, dtype=dtype, device=device)
    return network


def check(directory: Path, translated: Mapping[str, Tensor]) -> None:
    """Raise `CheckpointError` unless translated tensors fit the directory's config and vocabulary."""
    config = S1Config.from_json(read_json(directory / "config.json"))
    _check_vocabulary(config, read_vocabulary(directory))
    named = dict(translated)
    _tie(config, named, f"the model of {directory}")
    with skeleton():
        network = S1Network(config, main_rows=config.vocab_size, residual_rows=config.codebook_size)
    check_fit(network, named, source=f"the model of {directory}")


def _check_vocabulary(config: S1Config, tokenizer: S1Tokenizer | Vocabulary) -> None:
    begin, end = tokenizer.semantic_begin, tokenizer.semantic_end
    stated = (config.semantic_begin, config.semantic_end)
    if any(value is not None for value in stated) and stated != (begin, end):
        raise CheckpointMismatchError(
            f"config.json puts semantic tokens at {reprlib.repr(stated)}, special_tokens.json at {(begin, end)}"
        )
    if tokenizer.highest_id >= config.vocab_size:
        raise CheckpointMismatchError(
            f"the vocabulary has id {tokenizer.highest_id}; config.json's vocab_size is {config.vocab_size}"
        )
    if end - begin + 1 > config.codebook_size:
        raise CheckpointMismatchError(
            f"special_tokens.json has {end - begin + 1} semantic tokens; "
            f"config.json's codebook_size is {config.codebook_size}"
        )


def _keep_rows(named: dict[str, Tensor], name: str, stored: int, rows: slice | list[int], source: str) -> None:
    """Keep some rows of a head, once it is certain that it has the `stored` rows its config says."""
    if name not in named:
        return  # `fit` names it as missing
    if named[name].dim() != 2 or len(named[name]) != stored:
        raise CheckpointMismatchError(
            f"{source} does not fit its config: {name} {tuple(named[name].shape)} has not {stored} rows"
        )
    for part in (name, name + SUFFIX):
        if part in named and named[part].dim():
            named[part] = named[part][rows]
