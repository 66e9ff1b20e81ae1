"""Encodec at 24 kHz (Défossez et al. 2022), causal, mono, 75 frames/s, from its own checkpoints or from Bark's.

It consists of a SEANet encoder and decoder with an LSTM in each, around residual codebooks.
"""
