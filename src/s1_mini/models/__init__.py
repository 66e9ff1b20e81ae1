"""Families: text and voice in, frames out. One folder each; they do not know each other, nor any codec."""
