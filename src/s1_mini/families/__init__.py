"""Families: text and voice in, sound out. One folder each; they do not know each other.

A new one is a folder with a class as `base.Family` says, a line in `registry.FAMILIES`, and one in each contract about
families in setup.cfg.
"""
