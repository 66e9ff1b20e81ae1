"""Encodec at 24 kHz (Défossez et al. 2022), as in its published checkpoints and in Bark's: causal, mono, 75 frames/s.

A SEANet encoder and decoder with an LSTM in each, around residual codebooks.
"""
