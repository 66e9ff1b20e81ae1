"""Sizes of the codecs that were tried. All take and give 24 kHz."""

from __future__ import annotations

from typing import Any

_COMMON: dict[str, Any] = {
    "sample_rate": 24_000,
    "encoder_dim": 24,
    "encoder_transformer_layers": [0, 0, 0, 0],
    "enc_block_size": 8192,
    "codebook_size": 1024,
    "semantic_codebook_size": 1024,
    "codebook_dim": 8,
    "decoder_dim": 512,
    "input_dim": 256,
    "q_dim": 256,
    "q_n_head": 4,
    "q_n_layer": 3,
    "q_inter": 512,
    "q_block_size": 2048,
}

# The window of the quantiser's transformers is as long as what is trained on at once, about 1.2 s.
CODECS: dict[str, dict[str, Any]] = {
    # 12.5 frames/s, 10 codes each: 1.25 kbit/s
    "slow": {
        **_COMMON,
        "encoder_rates": [3, 4, 5, 8],
        "downsample_factor": [2, 2],
        "decoder_rates": [5, 4, 4, 3, 2],
        "n_codebooks": 9,
        "q_window": 16,
    },
    # 20 frames/s, 8 codes each: 1.6 kbit/s
    "fast": {
        **_COMMON,
        "encoder_rates": [3, 4, 5, 10],
        "downsample_factor": [2],
        "decoder_rates": [5, 5, 4, 3, 2],
        "n_codebooks": 7,
        "q_window": 24,
    },
}
