"""`s1-mini voices list`, `describe`, `add` and `delete`: the named voices of a checkpoint and of a directory."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from s1_mini.config import EngineConfig
    from s1_mini.types import VoiceInfo
    from s1_mini.voices.roster import Roster

MAX_SHOWN = 60  # characters of a transcript in the table

app = typer.Typer(
    name="voices", help="List, describe, add and delete named voices.", no_args_is_help=True, rich_markup_mode=None
)

Name = Annotated[str, typer.Argument(help="The voice's name.", show_default=False)]
Checkpoint = Annotated[
    Path | None, typer.Option("--checkpoint", help="Checkpoint directory. [the voice that ships]", show_default=False)
]
Folder = Annotated[
    Path | None,
    typer.Option("--voices-path", help="Directory of added voices. [S1_MINI_VOICES_PATH]", show_default=False),
]


@app.command("list")
def list_voices(checkpoint: Checkpoint = None, voices_path: Folder = None) -> None:
    """List all voices.

    Example: s1-mini voices list --voices-path my-voices
    """
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table("name", "source", "seconds", "description", "what is said")
    for info in _roster(_config(checkpoint, voices_path)).infos():
        name = f"{info.name} (default)" if info.is_default else info.name
        said = info.text if len(info.text) <= MAX_SHOWN else info.text[: MAX_SHOWN - 1] + "…"
        cells = (name, info.source, f"{info.seconds:.1f}", info.description, said)
        table.add_row(*map(Text, cells))  # as text: brackets in it are no markup
    Console().print(table)


@app.command("describe")
def describe_voice(name: Name, checkpoint: Checkpoint = None, voices_path: Folder = None) -> None:
    """Tell all about one voice.

    Example: s1-mini voices describe clara
    """
    _print(_roster(_config(checkpoint, voices_path)).info(name))


@app.command("add")
def add_voice(
    name: Name,
    audio: Annotated[Path, typer.Argument(help="Recording, any sound file.", show_default=False)],
    text: Annotated[str, typer.Option(help="What is said in it, word for word.", show_default=False)],
    description: Annotated[str, typer.Option(help="A few words about the voice.", show_default=False)] = "",
    replace: Annotated[bool, typer.Option("--replace", help="Even if there is a voice of that name.")] = False,
    checkpoint: Checkpoint = None,
    voices_path: Folder = None,
) -> None:
    """Make a voice of a recording and keep it in the directory of voices.

    Example: s1-mini voices add me me.wav --text "What I say there." --voices-path my-voices
    """
    from s1_mini.engine import ProductionTTSEngine

    config = _config(checkpoint, voices_path, needs_path=True)
    with ProductionTTSEngine(config) as engine:
        _print(engine.add_voice(name, audio, text, description=description, replace=replace))


@app.command("delete")
def delete_voice(name: Name, checkpoint: Checkpoint = None, voices_path: Folder = None) -> None:
    """Delete an added voice, with the recording beside it if it came from one.

    Example: s1-mini voices delete me --voices-path my-voices
    """
    _roster(_config(checkpoint, voices_path, needs_path=True)).delete(name)


def _config(checkpoint: Path | None, voices_path: Path | None, *, needs_path: bool = False) -> EngineConfig:
    from s1_mini.config import EngineConfig
    from s1_mini.exceptions import ConfigurationError

    given = {"checkpoint_path": checkpoint, "voices_path": voices_path}
    config = EngineConfig(**{name: value for name, value in given.items() if value is not None})
    if needs_path and config.voices_path is None:
        raise ConfigurationError("name the directory of voices with --voices-path or S1_MINI_VOICES_PATH")
    # One voice is to be made: nothing is read ahead, and one slot is enough.
    return config.model_copy(update={"warm_voices": "", "max_batch_size": 1})


def _roster(config: EngineConfig) -> Roster:
    from s1_mini.runtime.loader import find_checkpoint
    from s1_mini.runtime.voice_desk import open_roster
    from s1_mini.voices.library import VoiceLibrary

    checkpoint = find_checkpoint(config.checkpoint_path)
    return open_roster(checkpoint, VoiceLibrary.open(checkpoint), config)


def _print(info: VoiceInfo) -> None:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table.grid(padding=(0, 2))
    facts = {
        "name": info.name,
        "source": info.source,
        "default": "yes" if info.is_default else "no",
        "seconds": f"{info.seconds:.1f}",
        "description": info.description,
        "text": info.text,
    }
    for fact, value in facts.items():
        table.add_row(fact, Text(value))
    Console().print(table)
