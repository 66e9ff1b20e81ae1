"""Reduced-precision formats of a mel model are compared with float32 on the same frames."""

from __future__ import annotations

import json
from pathlib import Path

from benchmark.mel_formats import FORMATS, main
from commands import Command
from s1_mini.families.mel.random import write_random_checkpoint


def test_the_command_reports_the_error_of_every_format(tmp_path: Path, command: Command) -> None:
    write_random_checkpoint(tmp_path / "tiny", form="published")

    code, _, output, _ = command(
        main, "--device cpu --text Hello.", checkpoint=tmp_path / "tiny", output=tmp_path / "it.json"
    )

    assert code == 0
    assert json.loads((tmp_path / "it.json").read_text()) == output
    found = {one["name"]: one["distance"] for one in output["formats"]}
    assert [*found] == [each.name for each in FORMATS]
    assert 0 < found["float16"] < found["bfloat16"] < found["bfloat16, fp8 weights"] < 0.2
