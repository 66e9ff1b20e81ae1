"""The cascade (Bark): text to semantic tokens, to frames of two codes, to frames of eight codes, to audio.

Three transformers and the codec Encodec make these four steps; docs/cascade.md describes them.
"""
