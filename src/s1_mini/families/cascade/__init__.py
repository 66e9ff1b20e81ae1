"""The cascade (Bark): text to semantic tokens, to two codebooks, to eight codebooks, to audio, with one model each.

The models are three transformers and the codec Encodec; docs/cascade.md describes them.
"""
