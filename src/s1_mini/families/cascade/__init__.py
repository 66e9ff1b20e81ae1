"""The cascade: text to semantic tokens, to two books of codes, to eight, to audio, each by a model of its own (Bark).

Three transformers and the codec Encodec. docs/cascade.md says how they go together.
"""
