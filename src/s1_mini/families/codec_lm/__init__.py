"""Codec language models, shared by their families: a backbone over frames, a depth transformer over their codes.

`network.py` has the products, `model.py` the state of many sequences, `stage.py` the stage of an engine.
"""
