"""Qwen3-TTS: text and codes summed per position, a depth transformer with its own tables and heads per codebook.

Implements the 12 Hz models (arXiv 2601.15621): Base, CustomVoice and VoiceDesign, 0.6B and 1.7B.
"""
