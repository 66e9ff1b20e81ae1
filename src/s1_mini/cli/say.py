"""`s1-mini say`: one text to one sound, to a file, down a pipe or to the loudspeaker."""

from __future__ import annotations

import errno
import os
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    import numpy as np

    from s1_mini.audio.container import AudioFormat
    from s1_mini.config import EngineConfig
    from s1_mini.types import AudioChunk

PIPE = "-"
ONE_PIECE_BYTES = 200  # a text that is not split
BATCH_VARIABLES = {"S1_MINI_MAX_BATCH_SIZE", "S1_MINI_BATCH_SIZE"}


def say(
    text: Annotated[str, typer.Argument(help="What to say; - reads it from stdin.", show_default=False)],
    output: Annotated[
        str | None,
        typer.Option("--output", "-o", help="File to write; - is stdout. [out.wav; none with --play]"),
    ] = None,
    audio_format: Annotated[
        str | None, typer.Option("--format", help="wav, flac, mp3, opus, ogg or pcm; else by the file's suffix.")
    ] = None,
    checkpoint: Annotated[Path | None, typer.Option(help="Checkpoint directory.", show_default=False)] = None,
    voice: Annotated[str | None, typer.Option(help="A named voice of the checkpoint.", show_default=False)] = None,
    reference: Annotated[
        Path | None, typer.Option(help="Recording whose voice to use, any sound file.", show_default=False)
    ] = None,
    reference_text: Annotated[
        str | None, typer.Option(help="What is said in the reference.", show_default=False)
    ] = None,
    seed: Annotated[int | None, typer.Option(help="Same seed, same sound.", show_default=False)] = None,
    temperature: Annotated[float, typer.Option(help="0 is always the likeliest.")] = 0.8,
    top_p: Annotated[float, typer.Option(help="How much of the probability to draw from.")] = 0.8,
    repetition_penalty: Annotated[float, typer.Option(help="Above 1 avoids repeating.")] = 1.1,
    max_new_tokens: Annotated[int, typer.Option(help="Longest sentence piece, in frames (S1-mini: 46 ms).")] = 1024,
    stream: Annotated[
        bool, typer.Option("--stream", help="With -o -: send sound while it is made (wav or pcm).")
    ] = False,
    play: Annotated[bool, typer.Option("--play", help="Play it while it is made; needs s1-mini[play].")] = False,
    device: Annotated[str | None, typer.Option(help="auto, cpu, cuda, cuda:1, mps.", show_default=False)] = None,
    precision: Annotated[str | None, typer.Option(help="auto, float32, float16, bfloat16.", show_default=False)] = None,
    verbose: Annotated[bool, typer.Option("--verbose", "-v", help="Say how long it took.")] = False,
) -> None:
    """Say a text.

    Example: s1-mini say "Good morning." -o morning.wav --reference me.wav --reference-text "What I say there."
    """
    from s1_mini.cli.play import find_loudspeaker, played

    output = output or (None if play else "out.wav")
    format_ = _format(output, audio_format, stream)
    loudspeaker = find_loudspeaker() if play else None

    from s1_mini.engine import ProductionTTSEngine

    words = _read_stdin() if text == PIPE else text
    started = time.perf_counter()
    settings = _settings(words, checkpoint_path=checkpoint, device=device, precision=precision)
    with ProductionTTSEngine(settings) as engine:
        loaded_s = time.perf_counter() - started
        started = time.perf_counter()
        chunks = engine.stream(
            words,
            voice=voice,
            reference_audio=reference,
            reference_text=reference_text,
            temperature=temperature,
            top_p=top_p,
            repetition_penalty=repetition_penalty,
            max_new_tokens=max_new_tokens,
            seed=seed,
        )
        rate = engine.sample_rate
        chunks = _with_progress(chunks, rate)
        if loudspeaker is not None:
            chunks = played(chunks, rate, loudspeaker)
        if stream:
            wave, reason = _send(chunks, rate, format_)
        else:
            wave, reason = _collect(chunks)
            if output is not None:
                _save(wave, rate, output, format_)
        took_s = time.perf_counter() - started
    if reason == "length":
        typer.echo("s1-mini: warning: a sentence reached --max-new-tokens and was cut there", err=True)
    if verbose or sys.stderr.isatty():
        _report(output, len(wave) / rate, None if play else took_s, loaded_s)
    elif output not in (None, PIPE):
        typer.echo(f"wrote {output}", err=True)


def _report(output: str | None, said_s: float, took_s: float | None, loaded_s: float) -> None:
    where = {None: "loudspeaker", PIPE: "stdout"}.get(output, output)
    speed = "" if took_s is None else f" in {took_s:.2f} s (real-time factor {took_s / said_s:.2f})"
    typer.echo(f"{where}: {said_s:.2f} s of sound{speed}, loaded in {loaded_s:.2f} s", err=True)


def _settings(words: str, **named: object) -> EngineConfig:
    """Settings from variables and options; one sentence for one person may take as long as it takes, and all slots."""
    from s1_mini.config import ENV_PREFIX, EngineConfig

    values = {name: value for name, value in named.items() if value is not None}
    if f"{ENV_PREFIX}REQUEST_TIMEOUT_S" not in os.environ:
        values["request_timeout_s"] = float("inf")
    if len(words.encode()) <= ONE_PIECE_BYTES and not BATCH_VARIABLES & set(os.environ):
        values["max_batch_size"] = 1  # there is nothing to speak beside it, and one row is faster than four
    return EngineConfig(**values)


def _read_stdin() -> str:
    """Read the text as UTF-8, whatever the terminal's code page is."""
    from s1_mini.exceptions import TextError

    try:
        return sys.stdin.buffer.read().decode("utf-8-sig")
    except (UnicodeDecodeError, AttributeError, OSError) as error:
        raise TextError("text", f"stdin does not give UTF-8 text: {error}") from None


def _format(output: str | None, named: str | None, stream: bool) -> AudioFormat:
    from s1_mini.audio.container import check_format, check_writable, format_of
    from s1_mini.exceptions import ParameterError

    if stream and output != PIPE:
        raise ParameterError("stream", "goes down stdout; add `-o -`, or take --play to hear it while it is made")
    file = None if output == PIPE else output
    if file is not None:
        check_writable(file)  # before an hour of speech, not after
    if named is None:
        chosen: AudioFormat = "wav" if file is None else format_of(file)
    else:
        chosen = check_format(named)
    if stream and chosen not in ("wav", "pcm"):
        raise ParameterError("format", f"{chosen} cannot be streamed down a pipe; use wav or pcm")
    return chosen


def _collect(chunks: Iterator[AudioChunk]) -> tuple[np.ndarray, str | None]:
    import numpy as np

    received = list(chunks)
    return np.concatenate([chunk.audio for chunk in received]), received[-1].finish_reason


def _send(chunks: Iterator[AudioChunk], rate: int, format_: AudioFormat) -> tuple[np.ndarray, str | None]:
    """Send every chunk down stdout as soon as it is there."""
    import numpy as np

    from s1_mini.audio.container import wav_stream_header
    from s1_mini.audio.pcm import to_int16

    sent, reason, header = [], None, wav_stream_header(rate) if format_ == "wav" else b""
    for chunk in chunks:
        _write_stdout(header + to_int16(chunk.audio).tobytes())
        header = b""
        sent.append(chunk.audio)
        reason = chunk.finish_reason
    return np.concatenate(sent), reason


def _write_stdout(content: bytes) -> None:
    from s1_mini.exceptions import ParameterError

    try:
        sys.stdout.buffer.write(content)
        sys.stdout.buffer.flush()
    except (OSError, AttributeError) as error:
        if is_gone(error):
            raise BrokenPipeError(errno.EPIPE, "whoever listened has heard enough") from None
        raise ParameterError("output", f"cannot write to stdout: {error}") from None


def is_gone(error: Exception, *, is_windows: bool = os.name == "nt") -> bool:
    """Tell whether a write failed because nobody reads the pipe any longer."""
    return getattr(error, "errno", None) in ((errno.EPIPE, errno.EINVAL) if is_windows else (errno.EPIPE,))


def _save(wave: np.ndarray, rate: int, output: str, format_: AudioFormat) -> None:
    from s1_mini.audio.container import encode, write

    if output == PIPE:
        _write_stdout(encode(wave, rate, format_))
    else:
        write(output, wave, rate, format_)


def _with_progress(chunks: Iterator[AudioChunk], rate: int) -> Iterator[AudioChunk]:
    """Show how much has been said, if a person is looking."""
    if not sys.stderr.isatty():
        yield from chunks
        return
    from rich.console import Console
    from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

    columns = (SpinnerColumn(), TextColumn("speaking"), BarColumn(), TextColumn("{task.fields[said]:.1f} s of sound"))
    with Progress(*columns, TimeElapsedColumn(), console=Console(stderr=True), transient=True) as progress:
        task, said = progress.add_task("speaking", total=None, said=0.0), 0.0
        for chunk in chunks:
            said += len(chunk.audio) / rate
            progress.update(task, said=said)
            yield chunk
