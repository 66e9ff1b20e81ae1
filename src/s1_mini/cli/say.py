"""`s1-mini say`: speak one text into a file, to stdout or to the loudspeaker (`s1-mini[play]`)."""

from __future__ import annotations

import errno
import os
import sys
import time
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from s1_mini.cli.verb import (
    PIPE,
    Checkpoint,
    Device,
    ExistingVoicesPath,
    FileFormat,
    Precision,
    engine_config,
    file_format,
    named_checkpoint,
    with_options,
)
from s1_mini.exceptions import ConfigurationError, ParameterError, TextError
from s1_mini.extras import require
from s1_mini.files import foreign_encoding, open_regular
from s1_mini.text.tidy import tidied
from s1_mini.types import SpeechOptions, TTSRequest

if TYPE_CHECKING:
    from s1_mini.cli.long_text import Block, Reading
    from s1_mini.config import EngineConfig
    from s1_mini.types import AudioChunk, AudioFormat, Word

MAX_FILE_BYTES = 64 * 2**20  # of a text file
ONE_PIECE_BYTES = 200  # a text of at most this size is not split


@with_options("lexicon", "chunk_profile", "word_times")
def say(
    text: Annotated[
        str | None, typer.Argument(metavar="TEXT", help="Text to speak, in quotes; - reads stdin.", show_default=False)
    ] = None,
    text_file: Annotated[
        Path | None,
        typer.Option("--input", metavar="FILE", help="Text file of any length, such as a book, instead of TEXT."),
    ] = None,
    path: Annotated[
        str | None,
        typer.Option("--output", "-o", metavar="FILE", help="File to write; - is stdout. [out.wav; none with --play]"),
    ] = None,
    audio_format: FileFormat = None,
    checkpoint_path: Checkpoint = None,
    *,
    options: SpeechOptions,
    voices_path: ExistingVoicesPath = None,
    reference_audio: Annotated[
        Path | None, typer.Option("--reference", help="Recording of the voice to clone, or a voice file (.npz, .npy).")
    ] = None,
    reference_text: Annotated[str | None, typer.Option(metavar="TEXT", help="Transcript of the reference.")] = None,
    lexicon_path: Annotated[
        Path | None,
        typer.Option("--lexicon", metavar="FILE", help="Lines `word = respelling`, or PLS. [S1_MINI_LEXICON_PATH]"),
    ] = None,
    stream: Annotated[
        bool, typer.Option("--stream", help="With -o -: send audio while it is generated (wav or pcm).")
    ] = False,
    subtitles: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Also write subtitles with word times: .srt or .vtt.")
    ] = None,
    play: Annotated[
        bool, typer.Option("--play", help="Play the audio while it is generated; needs s1-mini[play].")
    ] = False,
    device: Device = None,
    precision: Precision = None,
    verbose: Annotated[bool, typer.Option("--verbose", "-v", help="Print timings and the spoken text.")] = False,
) -> None:
    """Speak a text, or with --input a text file of any length, whose audio is written as it is generated.

    Example: s1-mini say "Good morning." -o morning.wav --reference me.wav --reference-text "What I say there."
    """
    from s1_mini.checkpoint.requests import check_request

    # As much as possible is checked before torch and the model are loaded, which takes seconds.
    _check_voice(options["voice"], reference_audio, reference_text)
    references: SpeechOptions = {"reference_audio": reference_audio, "reference_text": reference_text}
    options = {**options, **references, "word_times": subtitles is not None}
    text_type, sample_rate = options["text_type"], options["sample_rate"]
    if subtitles is not None:
        _check_subtitles(subtitles)
    TTSRequest.of("", **options)
    config = engine_config(
        checkpoint_path=checkpoint_path,
        voices_path=voices_path,
        lexicon_path=lexicon_path,
        device=device,
        precision=precision,
    )
    path = path or (None if play else "out.wav")
    format_ = _format(path, audio_format, stream)
    loudspeaker = find_loudspeaker() if play else None
    text, blocks, config = _read_blocks(text, text_file, text_type, config)
    request = TTSRequest.of(blocks[0].text, **options)
    checkpoint = named_checkpoint(config.checkpoint_path)
    spoken = {*check_request(request, config, checkpoint, (block.text for block in blocks[1:]))}
    blocks = [block for block in blocks if block.text in spoken]
    config = config.model_copy(update={"checkpoint_path": checkpoint.directory})

    from s1_mini.cli.long_text import Reading, with_voices
    from s1_mini.engine import ProductionTTSEngine

    started = time.perf_counter()
    with ProductionTTSEngine(_for_one(text, config)) as engine:
        loaded_s = time.perf_counter() - started
        started = time.perf_counter()
        is_live = subtitles is None or stream or play  # word times from the whole audio are more accurate
        if text_type == "marked":
            blocks = with_voices(blocks, engine.voice_names())
        reading, rate = Reading(engine, request, blocks), sample_rate or engine.sample_rate
        chunks = _noted(reading.chunks(streams=is_live), verbose=verbose)
        chunks = _with_progress(chunks, reading, len(text), rate)
        if loudspeaker is not None:
            chunks = played(chunks, rate, loudspeaker)
        summary = _Summary()
        heard = summary.of(_sent(chunks, format_) if stream else chunks)
        _deliver(heard, None if stream else path, format_, rate, is_labelled=config.label_audio)
        if subtitles is not None:
            _write_subtitles(subtitles, text, text_type, summary.words, is_labelled=config.label_audio)
        took_s = time.perf_counter() - started
    if summary.is_cut:
        typer.echo("s1-mini: warning: a sentence reached --max-new-tokens or the model's limit and was cut", err=True)
    if verbose or sys.stderr.isatty():
        _report(path, summary.seconds, None if play else took_s, loaded_s)
    elif path not in (None, PIPE):
        typer.echo(f"wrote {path}", err=True)


@dataclass
class _Summary:
    """Figures of the audio that passes through `of`, and its words."""

    seconds: float = 0.0
    is_cut: bool = False
    words: list[Word] = field(default_factory=list)

    def of(self, chunks: Iterator[AudioChunk]) -> Iterator[AudioChunk]:
        for chunk in chunks:
            self.seconds += len(chunk.audio) / chunk.sample_rate
            self.is_cut = self.is_cut or chunk.finish_reason == "length"
            self.words += chunk.words
            yield chunk


def _deliver(
    chunks: Iterator[AudioChunk], path: str | None, format_: AudioFormat, rate: int, *, is_labelled: bool
) -> None:
    """Write the audio to a file as it comes, or at the end to stdout (`PIPE`); without a path, only read the chunks."""
    import numpy as np

    from s1_mini.audio.container import encode, writing

    if path == PIPE:
        whole = np.concatenate([chunk.audio for chunk in chunks])
        _write_stdout(encode(whole, rate, format_, is_labelled=is_labelled))
    elif path is not None:
        with writing(path, rate, format_, is_labelled=is_labelled) as add:
            for chunk in chunks:
                add(chunk.audio)
    else:
        deque(chunks, maxlen=0)


def _read_blocks(
    text: str | None, file: Path | None, text_type: str, config: EngineConfig
) -> tuple[str, list[Block], EngineConfig]:
    """Return the text, its blocks, and the settings with a limit that allows them; only a file has no limit.

    Raises `RequestError` for a text that is missing, too long or not UTF-8, or that has nothing to speak.
    """
    from s1_mini.cli.long_text import BLOCK_LENGTH, Block, cut_blocks

    if (text is None) == (file is None):
        raise ParameterError("text", "give a text in quotes, or a file with --input, and not both")
    if file is None:
        text = _read_stdin() if text == PIPE else str(text)
        tidied(text, config.max_text_length)
        return text, [Block(text, 0)], config
    text = _read_file(file)
    if text_type == "ssml":  # one document, which cannot be cut
        return text, [Block(text, 0)], config.model_copy(update={"max_text_length": max(len(text), 1)})
    blocks = cut_blocks(text, min(BLOCK_LENGTH, config.max_text_length))
    if not blocks:
        raise ParameterError("text_file", f"{str(file)!r} contains nothing to speak")
    return text, blocks, config


def _read_file(path: Path) -> str:
    """Read a text file, or stdin for `PIPE`. Raises `ParameterError`."""
    if str(path) == PIPE:
        return _read_stdin()
    try:
        with open_regular(path) as file:
            content = file.read(MAX_FILE_BYTES + 1)
    except OSError as error:
        raise ParameterError("text_file", f"cannot read {str(path)!r}: {error.strerror or error}") from None
    if len(content) > MAX_FILE_BYTES:
        raise ParameterError("text_file", f"{str(path)!r} is larger than {MAX_FILE_BYTES // 2**20} MiB; divide it")
    return _decoded(content, "text_file", repr(str(path)))


def _decoded(content: bytes, field: str, name: str) -> str:
    if encoding := foreign_encoding(content[:4]):
        raise ParameterError(field, f"{name} is {encoding}; save it as UTF-8")
    try:
        return content.decode("utf-8-sig").replace("\r\n", "\n")
    except UnicodeDecodeError as error:
        raise ParameterError(field, f"{name} is not UTF-8 text: {error}") from None


def _check_subtitles(path: Path) -> None:
    from s1_mini.alignment.subtitles import check_suffix
    from s1_mini.audio.container import check_writable

    check_suffix(path)
    check_writable(path)


def _write_subtitles(path: Path, text: str, text_type: str, words: Sequence[Word], *, is_labelled: bool) -> None:
    from s1_mini.alignment.subtitles import blank_markup, find_cues, format_subtitles
    from s1_mini.audio.container import COMMENT
    from s1_mini.text.structure import find_breaks
    from s1_mini.text.tags import blank_tags

    marked = blank_markup(text, text_type, words)
    cues = find_cues(blank_tags(marked), words, find_breaks(marked))
    content = format_subtitles(cues, path.suffix, COMMENT if is_labelled else "")
    try:
        path.write_text(content, encoding="utf-8", newline="\n")
    except OSError as error:
        raise ParameterError("subtitles", f"cannot write {str(path)!r}: {error.strerror}") from None


def _report(output: str | None, said_s: float, took_s: float | None, loaded_s: float) -> None:
    where = {None: "loudspeaker", PIPE: "stdout"}.get(output, output)
    speed = "" if took_s is None else f" in {took_s:.2f} s (real-time factor {took_s / said_s:.2f})"
    typer.echo(f"{where}: {said_s:.2f} s of audio{speed}, loaded in {loaded_s:.2f} s", err=True)


def _check_voice(voice: str | None, reference: Path | None, transcript: str | None) -> None:
    if reference is None and transcript:
        raise ParameterError("reference_text", "was given without a recording; add --reference")
    if reference is not None and voice is not None:
        raise ParameterError("voice", "cannot be combined with --reference")


def _for_one(words: str, config: EngineConfig) -> EngineConfig:
    """Change default settings for a single request: no time limit, and one slot if the text is short."""
    from s1_mini.config import set_variable

    values: dict[str, object] = {}
    if set_variable("request_timeout_s") is None:
        values["request_timeout_s"] = float("inf")
    if len(words.encode()) <= ONE_PIECE_BYTES and set_variable("max_batch_size") is None:
        values["max_batch_size"] = 1  # a frame of one slot is computed faster than one of four slots
    return config.model_copy(update=values)


def _read_stdin() -> str:
    """Read the text as UTF-8, whatever the terminal's code page is."""
    if sys.stdin is None:  # in a program without a console, or after `<&-`
        raise TextError("text", "- reads stdin, but this process has no stdin; give the text as an argument")
    try:
        content = sys.stdin.buffer.read()
    except OSError as error:
        raise TextError("text", f"stdin cannot be read: {error}") from None
    return _decoded(content, "text", "stdin")


def _format(output: str | None, named: str | None, stream: bool) -> AudioFormat:
    from s1_mini.audio.container import check_format

    if stream and output != PIPE:
        raise ParameterError("stream", "writes to stdout: add `-o -`, or use --play to listen while it is generated")
    chosen = check_format(file_format(output, named))
    if stream and chosen not in ("wav", "pcm"):
        raise ParameterError("audio_format", f"{chosen} cannot be streamed to stdout; use wav or pcm")
    return chosen


def _sent(chunks: Iterator[AudioChunk], format_: AudioFormat) -> Iterator[AudioChunk]:
    """Write each chunk to stdout as it arrives."""
    from s1_mini.audio.container import to_int16, wav_header

    is_first = True
    for chunk in chunks:
        header = wav_header(chunk.sample_rate) if is_first and format_ == "wav" else b""
        _write_stdout(header + to_int16(chunk.audio).tobytes())
        is_first = False
        yield chunk


def _write_stdout(content: bytes) -> None:
    try:
        sys.stdout.buffer.write(content)
        sys.stdout.buffer.flush()
    except (OSError, AttributeError) as error:
        if is_gone(error):
            raise BrokenPipeError(errno.EPIPE, "the reader closed the pipe") from None
        raise ParameterError("path", f"cannot write to stdout: {error}") from None


def is_gone(error: Exception, *, is_windows: bool = os.name == "nt") -> bool:
    """Return whether a write failed because the reader of the pipe has closed it."""
    return getattr(error, "errno", None) in ((errno.EPIPE, errno.EINVAL) if is_windows else (errno.EPIPE,))


def _noted(chunks: Iterator[AudioChunk], *, verbose: bool) -> Iterator[AudioChunk]:
    """Print each warning about the text once and, if `verbose`, the spoken text."""
    told: set[str] = set()
    for chunk in chunks:
        if chunk.warning is not None and chunk.warning not in told:
            told.add(chunk.warning)
            typer.echo(f"s1-mini: warning: {chunk.warning}", err=True)
        if verbose and chunk.spoken_text is not None:
            typer.echo(f"spoken: {chunk.spoken_text}", err=True)
        yield chunk


def _with_progress(chunks: Iterator[AudioChunk], reading: Reading, total: int, rate: int) -> Iterator[AudioChunk]:
    """Show how much of the text is spoken, the audio so far and the remaining time, if stderr is a terminal."""
    if not sys.stderr.isatty():
        yield from chunks
        return
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        Progress,
        TaskProgressColumn,
        TextColumn,
        TimeElapsedColumn,
        TimeRemainingColumn,
    )

    said = TextColumn("{task.fields[said]:.1f} s of audio")
    columns = (TextColumn("speaking"), BarColumn(), TaskProgressColumn(), said, TimeElapsedColumn(), TextColumn("left"))
    with Progress(*columns, TimeRemainingColumn(), console=Console(stderr=True), transient=True) as progress:
        task, seconds = progress.add_task("speaking", total=total, said=0.0), 0.0
        for chunk in chunks:
            seconds += len(chunk.audio) / rate
            progress.update(task, completed=reading.position, said=seconds)
            yield chunk


def find_loudspeaker() -> Any:
    """Return the package sounddevice if it finds an output device. Raises `ConfigurationError`."""
    try:
        import sounddevice
    except ImportError:
        require("play", "--play")
        raise
    except OSError as error:
        raise ConfigurationError(f"--play: {error}; on Debian and Ubuntu: apt install libportaudio2") from None
    try:
        sounddevice.query_devices(kind="output")
    except (sounddevice.PortAudioError, ValueError) as error:
        raise ConfigurationError(f"--play: no audio output device is available ({error})") from None
    return sounddevice


def played(chunks: Iterator[AudioChunk], sample_rate: int, sounddevice: Any) -> Iterator[AudioChunk]:
    """Play chunks as they arrive and yield them; the generator ends when all are played.

    Raises `ConfigurationError` if the output device fails.
    """
    try:
        with sounddevice.OutputStream(samplerate=sample_rate, channels=1, dtype="float32") as stream:
            for chunk in chunks:
                stream.write(chunk.audio.astype("float32"))
                yield chunk
    except sounddevice.PortAudioError as error:
        raise ConfigurationError(f"--play: the audio output device failed ({error})") from None
