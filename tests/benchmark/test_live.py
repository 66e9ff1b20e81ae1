"""The benchmark of arriving text measures the first audio and interruptions of a real server."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmark.live import PROTOCOLS, main
from commands import Command


@pytest.mark.long
def test_first_audio_and_interruptions_are_measured_in_every_protocol(oracle: Path, command: Command) -> None:
    code, lines, result, errors = command(
        main, "--turns 1 --rate 50 --modes clause --max-new-tokens 20", checkpoint=oracle
    )

    assert code == 0, errors
    (first,) = result["first"]
    assert first["mode"] == "clause"
    assert first["first_ms_p50"] > 0
    assert first["pieces"] >= 2
    assert [each["protocol"] for each in result["interruptions"]] == list(PROTOCOLS)
    assert all(each["answer_ms_max"] > 0 for each in result["interruptions"])
    assert any(line.startswith("elevenlabs") for line in lines)
    assert result["machine"]
