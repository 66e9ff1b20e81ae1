"""The CDK app of s1_mini on AWS: a foundation stack for each stage, and a stack for each of its endpoints.

The endpoints are described by `s1_mini.aws`, as those of `s1-mini endpoint`. It is imported from the checkout, because
the environment of the CDK does not have the engine.
"""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2] / "src"))
