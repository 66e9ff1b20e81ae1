"""S1: Fish-Speech / OpenAudio S1-mini and its siblings (dual autoregression).

The backbone predicts one semantic token per frame, the depth transformer the codes of the other codebooks.
"""
