"""Text normalization: `tidied` tidies, `form` fits a text to a checkpoint, `split` cuts it into sentences.

`spoken` turns numbers, dates and signs into words; it does not depend on a checkpoint.
"""

from s1_mini.text.reading import spoken

__all__ = ["spoken"]
