"""Which release this is; a leaf, so that every room may say so."""

__version__ = "0.1.0"
