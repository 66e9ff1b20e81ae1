"""Families: text and voice in, sound out. One folder each; they do not know each other."""
