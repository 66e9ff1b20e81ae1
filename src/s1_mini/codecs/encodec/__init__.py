"""Encodec at 24 kHz (Défossez et al. 2022), as its published checkpoints and Bark's have it: causal, mono, 75 frames/s.

A SEANet encoder and decoder with an LSTM in each, around residual codebooks.
"""
