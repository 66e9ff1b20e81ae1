"""Options that several verbs have: which checkpoint, where it runs, and in which number format."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, TypeAlias

import typer

from s1_mini.cli.verb import DEVICES, PRECISIONS, completing

Checkpoint: TypeAlias = Annotated[
    Path | None,
    typer.Option(
        "--checkpoint", help="Directory, or name on the Hugging Face hub. [the voice that ships]", show_default=False
    ),
]
Device: TypeAlias = Annotated[
    str | None,
    typer.Option(help="auto, cpu, cuda, cuda:1, mps.", autocompletion=completing(*DEVICES), show_default=False),
]
Precision: TypeAlias = Annotated[
    str | None,
    typer.Option(help="auto, float32, float16, bfloat16.", autocompletion=completing(*PRECISIONS), show_default=False),
]
