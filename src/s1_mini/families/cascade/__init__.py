"""The cascade (Bark): four models that turn text into semantic tokens, into two codes, into eight codes, into audio.

The models are three transformers and the codec Encodec; docs/cascade.md describes them.
"""
