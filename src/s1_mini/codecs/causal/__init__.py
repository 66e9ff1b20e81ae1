"""Building blocks of causal codecs: layers with state, streams, a decoder for GPUs, and the stage.

Codecs with window-limited transformers and residual convolutions, such as `dac`, are made of them.
"""
