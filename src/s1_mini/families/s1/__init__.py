"""S1: Fish-Speech's OpenAudio S1-mini and related models with two autoregressive transformers.

For each frame, the backbone predicts a semantic token, and the depth transformer the codes of the other codebooks.
"""
