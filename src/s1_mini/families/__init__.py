"""Model families, one package each. They do not import each other.

To add one: a package with a subclass of `base.Family`, an entry in `registry.FAMILIES` and, for
`s1-mini random-checkpoint --family`, in `registry.SHORT_NAMES`, and one in each contract about families in setup.cfg.
"""
