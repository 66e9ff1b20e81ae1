"""Codecs: convert frames to audio and audio to frames. They know nothing about texts, families and requests."""
