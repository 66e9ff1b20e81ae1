"""S1: Fish-Speech / OpenAudio S1-mini and its siblings (dual autoregression).

A slow transformer predicts one semantic token per frame, a fast one the frame's other codebooks.
"""
