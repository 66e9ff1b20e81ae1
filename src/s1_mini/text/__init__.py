"""Text normalization: Unicode and white space (`tidy`), language and alphabet (`form`), pieces (`split`).

`spoken` turns numbers, dates and signs into words; it does not depend on a checkpoint.
"""

from s1_mini.text.reading import spoken

__all__ = ["spoken"]
