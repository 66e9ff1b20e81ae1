"""Qwen3-TTS-Tokenizer-12Hz, the codec of Qwen3-TTS (16 codes for 80 ms), and the speaker encoder of its Base models."""
