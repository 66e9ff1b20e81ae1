"""Building blocks of causal codecs: layers with state, streams, a decoder for GPUs, and the stage.

Codecs with window-limited transformers and residual convolutions, `dac` and `qwen12`, consist of these parts.
"""
