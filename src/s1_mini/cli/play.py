"""Sound to the loudspeaker while it is made, by the package sounddevice (`s1-mini[play]`) and its PortAudio."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from s1_mini.exceptions import ConfigurationError
from s1_mini.extras import require

if TYPE_CHECKING:
    from s1_mini.types import AudioChunk


def find_loudspeaker() -> Any:
    """Give the package that plays, and see that it has something to play on. Raises `ConfigurationError`."""
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
        raise ConfigurationError(f"--play: this machine has no loudspeaker that can be used ({error})") from None
    return sounddevice


def played(chunks: Iterator[AudioChunk], sample_rate: int, sounddevice: Any) -> Iterator[AudioChunk]:
    """Play chunks as they come and hand them on; ends when all was heard. Raises `ConfigurationError`."""
    try:
        with sounddevice.OutputStream(samplerate=sample_rate, channels=1, dtype="float32") as stream:
            for chunk in chunks:
                stream.write(chunk.audio.astype("float32"))
                yield chunk
    except sounddevice.PortAudioError as error:
        raise ConfigurationError(f"--play: the loudspeaker cannot be used ({error})") from None
