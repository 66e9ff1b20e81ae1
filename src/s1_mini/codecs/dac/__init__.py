"""DAC as S1-mini uses it (modded_dac at fish-speech d3df505).

The Descript Audio Codec made causal, with window-limited transformers around one semantic and nine residual codebooks.
"""
