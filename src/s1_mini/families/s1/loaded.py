"""An S1 checkpoint that is open: the model, and the codec that goes with it. They are introduced to each other here."""

from __future__ import annotations

import threading
from collections.abc import Generator
from pathlib import Path

from torch import Tensor

from s1_mini.capacity.memory import Demand
from s1_mini.codecs.dac.channels_last import ChannelsLastDecoder
from s1_mini.codecs.dac.config import DacConfig
from s1_mini.codecs.dac.model import Dac
from s1_mini.codecs.dac.weights import open_dac, read_dac_config
from s1_mini.exceptions import CheckpointMismatchError
from s1_mini.families.base import LoadedModel, Placement
from s1_mini.families.s1.config import S1Config
from s1_mini.families.s1.costs import measure_demand, needed_positions
from s1_mini.families.s1.model import S1Model
from s1_mini.families.s1.settings import S1Settings
from s1_mini.families.s1.tokenizer import S1Tokenizer
from s1_mini.families.s1.weights import build_network
from s1_mini.layers.quantized import quantize_linears
from s1_mini.weights.files import find_tensors, read_json, read_tensors


class LoadedS1:
    """One checkpoint directory. The half of the codec that encodes is loaded when the first reference comes."""

    def __init__(self, directory: Path, model: S1Model, codec: Dac) -> None:
        self.model, self.codec = model, codec
        self.networks = (model.network,)
        self._directory = directory
        self._encoder: Dac | None = None
        self._lock = threading.Lock()

    def demand(self, prefix_cache_bytes: int) -> Demand:
        """Tell what slots of it take, wherever its weights lie."""
        return measure_demand(
            self.codec,
            model_bytes=self.model.num_bytes,
            column_bytes=self.model.column_bytes,
            prefix_cache_bytes=prefix_cache_bytes,
        )

    def needed_positions(self, reference_s: float, text_bytes: int) -> int:
        """Give the positions that a reference of so many seconds, a piece of text and its speech take."""
        return needed_positions(self.codec.config, reference_s, text_bytes)

    def open_decoder(self, rows: int) -> ChannelsLastDecoder:
        """Begin `rows` streams of the codec that a CUDA graph can be made of."""
        return ChannelsLastDecoder(self.codec, rows)

    def condition(self, wave: Tensor) -> Generator[None, None, dict[str, Tensor]]:
        """Encode a recording [samples] to its codes, with a `yield` after each block. Raises `CapacityError`."""
        codec = self.encoding_codec()
        return {"codes": (yield from codec.encode_by_blocks(wave.to(codec.device)))}

    def encoding_codec(self) -> Dac:
        """Give a codec that can encode."""
        with self._lock:
            if self._encoder is None:
                encoder = open_dac(self._directory, encodes=True, device=self.model.device)
                encoder.share_decoding(self.codec)
                self._encoder = encoder
            return self._encoder


def as_s1(loaded: LoadedModel) -> LoadedS1:
    """Let those who measure or train S1 alone have all of it. Raises `CheckpointMismatchError` for another family."""
    if not isinstance(loaded, LoadedS1):
        raise CheckpointMismatchError("this is of checkpoints of S1 only")
    return loaded


def read_configs(directory: Path) -> tuple[S1Config, DacConfig]:
    """Read both configs of a checkpoint, and no weights. Raises `CheckpointError`."""
    return S1Config.from_json(read_json(directory / "config.json")), read_dac_config(directory)


def open_s1(directory: Path, placement: Placement, settings: S1Settings) -> LoadedS1:
    """Open model and codec; narrow formats are of the slow layers. Raises `CheckpointError`."""
    codec_config = read_dac_config(directory)
    model = open_model(directory, placement, settings, residual_codes=codec_config.codebook_size)
    _check_pair(model, codec_config)
    codec = open_dac(directory, encodes=False, dtype=placement.codec_dtype, device=placement.device)
    return LoadedS1(directory, model, codec)


def open_model(directory: Path, placement: Placement, settings: S1Settings, *, residual_codes: int) -> S1Model:
    """Open the model alone. Raises `CheckpointError`."""
    config = S1Config.from_json(read_json(directory / "config.json"))
    tokenizer = S1Tokenizer.from_directory(directory)
    path = find_tensors(directory, "model")
    network = build_network(
        config,
        tokenizer,
        read_tensors(path),
        heads=settings.heads,
        residual_codes=residual_codes,
        dtype=placement.dtype,
        device=placement.device,
        source=path.name,
    )
    if placement.weights_dtype is not None:
        quantize_linears(network.layers, placement.weights_dtype)
    return S1Model(
        network,
        tokenizer,
        heads=settings.heads,
        repetition_mode=settings.repetition_mode,
        kv_dtype=placement.kv_dtype,
    )


def _check_pair(model: S1Model, codec: DacConfig) -> None:
    """Every code of the codec must mean something to the model. Raises `CheckpointMismatchError`."""
    num_semantic = model.tokenizer.semantic_end - model.tokenizer.semantic_begin + 1
    if model.num_codebooks != codec.num_codebooks:
        raise CheckpointMismatchError(
            f"config.json has num_codebooks={model.num_codebooks}; the codec has {codec.num_codebooks}"
        )
    if codec.semantic_codebook_size != num_semantic or codec.codebook_size > model.network.config.codebook_size:
        raise CheckpointMismatchError(
            f"the codec's books have {codec.semantic_codebook_size} and {codec.codebook_size} entries; the model has "
            f"{num_semantic} semantic tokens and {model.network.config.codebook_size} codes"
        )
