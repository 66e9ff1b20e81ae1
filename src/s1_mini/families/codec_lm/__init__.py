"""Codec language models, shared by their families: a backbone over frames, a depth transformer over their codes.

`network.py` computes logits, `model.py` adds the state of many sequences, and `stage.py` is the stage of an engine.
"""
