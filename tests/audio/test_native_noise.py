"""What libmpg123 says of broken frames stays out of a server's log, which goes on meanwhile."""

from __future__ import annotations

import subprocess
import sys

PROGRAM = """
import io, os, random, sys
import numpy, soundfile
from s1_mini.audio.native_noise import keep_out
from s1_mini.audio.reference import load_reference
from s1_mini.exceptions import ReferenceAudioError

buffer = io.BytesIO()
soundfile.write(buffer, numpy.random.default_rng(0).uniform(-0.4, 0.4, 240_000), 24_000, format="MP3")
broken, chance = bytearray(buffer.getvalue()), random.Random(1)
for _ in range(400):
    broken[chance.randrange(500, len(broken))] = chance.randrange(256)
log = keep_out() if sys.argv[1] == "quiet" else 2

def check():
    os.write(log, b"the log goes on\\n")

try:
    load_reference(bytes(broken), sample_rate=16_000, max_s=60, max_bytes=10**7, check=check)
except ReferenceAudioError:
    pass
os.write(2, b"and so does stderr\\n")
"""


def told(mode: str) -> list[str]:
    command = [sys.executable, "-c", PROGRAM, mode]
    return subprocess.run(command, capture_output=True, text=True, check=True).stderr.splitlines()


def test_only_a_program_that_asks_for_it_is_spared_the_noise() -> None:
    loud, quiet = told("loud"), told("quiet")

    assert any("mpg123" in line or "Note:" in line for line in loud)
    assert quiet[-1] == "and so does stderr"
    assert set(quiet[:-1]) == {"the log goes on"}
