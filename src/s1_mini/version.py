"""The version of this package, for those who may not import its front door."""

__version__ = "0.1.0"
