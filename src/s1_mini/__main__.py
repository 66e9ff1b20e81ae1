"""`python -m s1_mini` and the console command `s1-mini`."""

from __future__ import annotations

import sys

from s1_mini.cli.app import run


def main() -> None:
    """Run the command line and exit with its code."""
    sys.exit(run())


if __name__ == "__main__":
    main()
