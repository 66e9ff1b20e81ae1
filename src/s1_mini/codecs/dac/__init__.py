"""DAC in the form that S1-mini uses (modded_dac at fish-speech d3df505).

It is the Descript Audio Codec made causal, with window-limited transformers around one semantic and nine residual
codebooks.
"""
