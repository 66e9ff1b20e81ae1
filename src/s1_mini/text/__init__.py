"""Text in: `tidied` puts it in order, `form` makes of it what a checkpoint reads, `split` cuts it into pieces.

`spoken` gives a written text as it is said; it knows no checkpoint.
"""

from s1_mini.text.reading import spoken

__all__ = ["spoken"]
