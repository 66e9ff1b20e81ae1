"""`s1-mini voices list`, `describe`, `add` and `delete`: the named voices of a checkpoint and of a directory."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from s1_mini.cli.verb import (
    Checkpoint,
    ExistingVoicesPath,
    Group,
    Verb,
    VoicesPath,
    engine_config,
    named_checkpoint,
    print_table,
)
from s1_mini.exceptions import ConfigurationError
from s1_mini.types import Reference

if TYPE_CHECKING:
    from s1_mini.config import EngineConfig
    from s1_mini.types import VoiceInfo
    from s1_mini.voices.registry import VoiceRegistry

app = typer.Typer(
    name="voices",
    cls=Group,
    help="List, describe, add and delete named voices.",
    no_args_is_help=True,
    rich_markup_mode=None,
)

Name = Annotated[str, typer.Argument(metavar="NAME", help="The voice's name.")]


@app.command("list", cls=Verb)
def list_voices(checkpoint_path: Checkpoint = None, voices_path: ExistingVoicesPath = None) -> None:
    """List all voices.

    Example: s1-mini voices list --voices-path my-voices
    """
    registry = _registry(engine_config(checkpoint_path=checkpoint_path, voices_path=voices_path))
    rows = [
        (f"{info.name} (default)" if info.is_default else info.name, info.source, _seconds(info), info.description)
        for info in registry.infos()
    ]
    print_table(rows, "name", "source", "seconds", "description")


@app.command("describe", cls=Verb)
def describe_voice(voice: Name, checkpoint_path: Checkpoint = None, voices_path: ExistingVoicesPath = None) -> None:
    """Describe one voice.

    Example: s1-mini voices describe clara
    """
    _print(_registry(engine_config(checkpoint_path=checkpoint_path, voices_path=voices_path)).info(voice))


@app.command("add", cls=Verb)
def add_voice(
    voice: Name,
    reference_audio: Annotated[
        Path,
        typer.Argument(
            metavar="RECORDING", help="A wav, flac, mp3, ogg, opus or aiff file, or a voice file (.npz, .npy)."
        ),
    ],
    reference_text: Annotated[
        str, typer.Option("--text", help="Transcript of the recording, word for word. Qwen3-TTS can clone without it.")
    ] = "",
    description: Annotated[str, typer.Option(help="Description of the voice.")] = "",
    replace: Annotated[bool, typer.Option("--replace", help="Replace an added voice of that name.")] = False,
    checkpoint_path: Checkpoint = None,
    voices_path: VoicesPath = None,
) -> None:
    """Create a voice from a recording and store it in the folder of voices.

    Example: s1-mini voices add me me.wav --text "What I say there." --voices-path my-voices
    """
    # Making a voice needs one slot.
    config = engine_config(checkpoint_path=checkpoint_path, voices_path=voices_path, max_batch_size=1)
    if config.voices_path is None:
        raise _no_directory()

    from s1_mini.checkpoint.requests import check_reference, list_voices

    checkpoint = named_checkpoint(config.checkpoint_path)
    with list_voices(checkpoint, config.voices_path).adding(voice, replace=replace):
        checkpoint.description.voice.check_transcript(reference_text)
        check_reference(Reference(reference_audio, reference_text), config, checkpoint)
    config = config.model_copy(update={"checkpoint_path": checkpoint.directory})

    from s1_mini.engine import ProductionTTSEngine

    with ProductionTTSEngine(config) as engine:
        info = engine.add_voice(voice, reference_audio, reference_text, description=description, replace=replace)
    _print(info)
    if info.warning:
        typer.echo(f"s1-mini: warning: {info.warning}", err=True)


@app.command("delete", cls=Verb)
def delete_voice(voice: Name, checkpoint_path: Checkpoint = None, voices_path: ExistingVoicesPath = None) -> None:
    """Delete an added voice with its recording, transcript and lexicon, if it has any.

    Example: s1-mini voices delete me --voices-path my-voices
    """
    config = engine_config(checkpoint_path=checkpoint_path, voices_path=voices_path)
    registry = _registry(config)
    if config.voices_path is None and voice not in registry.library:
        raise _no_directory()
    registry.delete(voice)


def _registry(config: EngineConfig) -> VoiceRegistry:
    from s1_mini.checkpoint.requests import list_voices

    return list_voices(named_checkpoint(config.checkpoint_path), config.voices_path)


def _seconds(info: VoiceInfo) -> str:
    return f"{info.seconds:.1f}" if info.seconds else ""  # voices that are vectors have no duration


def _no_directory() -> ConfigurationError:
    return ConfigurationError("name the folder of added voices with --voices-path or S1_MINI_VOICES_PATH")


def _print(info: VoiceInfo) -> None:
    facts = {
        "name": info.name,
        "source": info.source,
        "default": "yes" if info.is_default else "no",
        "seconds": _seconds(info),
        "description": info.description,
        "text": info.text,
    }
    print_table(facts.items(), padding=(0, 2), box=None, show_header=False, pad_edge=False, collapse_padding=True)
