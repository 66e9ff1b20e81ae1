"""Model families, one package each. They do not import each other.

To add a family, write a package with a subclass of `base.Family`, and add entries to `registry.FAMILIES`, to
`registry.SHORT_NAMES` (for `s1-mini random-checkpoint --family`), and to each contract about families in setup.cfg.
"""
