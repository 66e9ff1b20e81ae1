"""Codecs: frames to waves and back, independent of texts, families and requests."""
