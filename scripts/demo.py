"""Hear a sentence: set up `.venv`, then let `s1-mini say` write it to a sound file.

Example: python scripts/demo.py "Any sentence." -o demo.wav

Needs Python 3.11 or newer and this checkout, nothing else. Until a trained voice is in the package, and unless a
checkpoint is named, a tiny model with random weights speaks: noise, by the same path as a real voice.
"""

import argparse
import os
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

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
    if needs_random_voice(ROOT, env):
        env[CHECKPOINT_VARIABLE] = str(random_checkpoint(ROOT, python, env))
        passed_on = ["--max-new-tokens", "60", *passed_on]  # 2.8 s: noise may not end by itself
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


def needs_random_voice(root: Path, env: "Mapping[str, str]") -> bool:
    """Tell whether there is no voice to speak with: none named, none in the package."""
    in_package = root / "src" / "s1_mini" / "default_model" / "config.json"
    return not env.get(CHECKPOINT_VARIABLE) and not in_package.exists()


def random_checkpoint(root: Path, python: Path, env: "Mapping[str, str]") -> Path:
    """Return a tiny checkpoint of random weights, made anew when the package is newer than it."""
    environment.say(
        "No trained voice is in the package, so a tiny model with random weights speaks: expect noise, not words. "
        f"Name a real checkpoint with --checkpoint DIR or {CHECKPOINT_VARIABLE}=DIR."
    )
    folder = root / ".venv" / "s1_mini-demo-checkpoint"
    changed = max(path.stat().st_mtime for path in (root / "src").rglob("*.py"))
    if not folder.exists() or folder.stat().st_mtime < changed:
        environment.say("Making its checkpoint …")
        with TemporaryDirectory(dir=str(folder.parent), prefix=f"{folder.name}-") as scratch:
            draft = Path(scratch) / "checkpoint"
            make_random_checkpoint(draft, python, env)
            shutil.rmtree(str(folder), ignore_errors=True)
            draft.rename(folder)  # only a whole one gets the name
    return folder


def make_random_checkpoint(folder: Path, python: Path, env: "Mapping[str, str]") -> None:
    """Write a tiny checkpoint of random weights; raise SetupError with its words if that fails."""
    command = [str(python), "-m", "s1_mini", "random-checkpoint", str(folder), "--size", "tiny"]
    done = subprocess.run(
        command, env=env, check=False, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, encoding="utf-8"
    )
    if done.returncode:
        raise environment.SetupError(f"{done.stdout}`s1-mini random-checkpoint` failed, for the reason above.")


if __name__ == "__main__":
    sys.exit(environment.run_main(main))
