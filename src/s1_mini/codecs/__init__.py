"""Codecs: frames to waves and back. They know no text, no family and no request."""
