"""The CDK app of s1_mini on AWS: a foundation stack for each stage, and a stack for each of its endpoints.

`s1_mini.aws` describes these endpoints, and those of `s1-mini endpoint`. `s1_mini` is imported from the checkout,
because it is not installed in the CDK's environment.
"""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2] / "src"))
