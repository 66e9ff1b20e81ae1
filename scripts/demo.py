"""Hear a sentence: set up `.venv`, then let `s1-mini say` write it to a sound file.

Example: python scripts/demo.py "Any sentence." -o demo.wav

Needs Python 3.11 or newer and this checkout, nothing else. Unless a checkpoint is named, the voice in the package
speaks.
"""

import argparse
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import environment

ROOT = Path(__file__).resolve().parent.parent
CHECKPOINT_VARIABLE = "S1_MINI_CHECKPOINT_PATH"


def main(arguments: "list[str]") -> int:
    """Write the sentence to the file and say where it is; return the exit code of `s1-mini say`."""
    options, passed_on = parse(arguments)
    python = environment.ensure(ROOT)
    env = environment.child_env(os.environ, sys.stderr.isatty())
    env["PYTHONSAFEPATH"] = "1"  # a random.py in the person's folder is not ours
    if options.checkpoint:
        env[CHECKPOINT_VARIABLE] = options.checkpoint
    say = [str(python), "-m", "s1_mini", "say", "--verbose", "-o", options.output, *passed_on]
    code = subprocess.call([*say, "--", options.text], env=env)  # after "--" a text may begin with a dash
    if code == 0:
        environment.say(f"The sound is in {Path(options.output).resolve()}")
    return code


def parse(arguments: "Sequence[str]") -> "tuple[argparse.Namespace, list[str]]":
    """Return our options, and the others for `s1-mini say`."""
    parser = argparse.ArgumentParser(
        description="Set up .venv and speak TEXT into a sound file.",
        epilog="All other options go to `s1-mini say`, after TEXT: python scripts/demo.py 'Hello.' --seed 1",
        allow_abbrev=False,
    )
    parser.add_argument("text", metavar="TEXT", help="the sentence to speak")
    parser.add_argument("-o", "--output", metavar="FILE", default="demo.wav", help="the file to write [demo.wav]")
    parser.add_argument("--checkpoint", metavar="DIR", help=f"a voice to speak with [{CHECKPOINT_VARIABLE}]")
    return parser.parse_known_args(arguments)


if __name__ == "__main__":
    sys.exit(environment.run_main(main))
