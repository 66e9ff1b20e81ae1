"""The alphabet of the voice; sizes of the 24 kHz codecs that were tried, and of dual-AR models for the best one."""

from __future__ import annotations

from typing import Any

LANGUAGE = "en"
ALPHABET = " !\"'(),-.:;?ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"

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

# The window of the quantiser's transformers is as long as a training example, about 1.2 s.
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

_MODEL: dict[str, Any] = {
    "model_type": "dual_ar",
    "head_dim": 64,
    "n_local_heads": 2,
    "n_fast_layer": 1,
    "fast_dim": 256,
    "fast_n_head": 4,
    "fast_n_local_heads": 2,
    "fast_head_dim": 64,
    "fast_intermediate_size": 512,
    "attention_qk_norm": True,
    "fast_attention_qk_norm": False,
    "codebook_size": 1024,
    "num_codebooks": 8,
    "rope_base": 10_000,
    "norm_eps": 1e-6,
    "max_seq_len": 2048,
    "tie_word_embeddings": False,
    "scale_codebook_embeddings": True,
    "text": {"language": LANGUAGE, "alphabet": ALPHABET, "piece_bytes": 100},
}

# The README.md of this folder has the cost of a frame on a CPU.
MODELS: dict[str, dict[str, Any]] = {
    "quick": {**_MODEL, "dim": 256, "n_layer": 6, "n_head": 4, "intermediate_size": 768},
    "broad": {**_MODEL, "dim": 512, "n_layer": 6, "n_head": 8, "intermediate_size": 1280},
}
