"""`s1-mini mcp`: tools that let a language model speak, over the Model Context Protocol on stdin and stdout."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer

from s1_mini.cli.verb import Checkpoint, Device, VoicesPath, engine_config, named_checkpoint
from s1_mini.exceptions import EngineError, ParameterError, S1MiniError
from s1_mini.extras import require
from s1_mini.files import read_regular

if TYPE_CHECKING:
    from s1_mini.config import EngineConfig
    from s1_mini.engine import ProductionTTSEngine
    from s1_mini.types import SpeechOptions

Result = TypeVar("Result")

MAX_RECORDING_BYTES = 64 * 2**20
TIMEOUT_S = 300.0  # timeout of a request to a server
INSTRUCTIONS = (
    "Speaks text and returns the audio or writes it to a file. The voice is one that list_voices returns, or one that "
    "clone_voice made from a recording."
)


def mcp(
    url: Annotated[
        str | None, typer.Option(envvar="S1_MINI_URL", help="Address of a running server. [a model in this process]")
    ] = None,
    api_key: Annotated[
        str | None, typer.Option(envvar="S1_MINI_API_KEY", help="API key of that server.", show_default=False)
    ] = None,
    folder: Annotated[Path, typer.Option(help="The only folder that audio is written to.")] = Path(),
    checkpoint_path: Checkpoint = None,
    voices_path: VoicesPath = None,
    device: Device = None,
) -> None:
    """Serve the tools speak, list_voices and clone_voice to a program that runs this command (MCP over stdio).

    Example: s1-mini mcp --url http://localhost:8080
    """
    require("mcp", "`s1-mini mcp`")
    speaker: EngineSpeaker | ServerSpeaker
    if url is not None:
        speaker = ServerSpeaker(url, api_key)
    else:
        config = engine_config(checkpoint_path=checkpoint_path, voices_path=voices_path, device=device)
        named_checkpoint(config.checkpoint_path)
        speaker = EngineSpeaker(config)
    try:
        tools(speaker, folder.resolve()).run()
    finally:
        speaker.close()


class EngineSpeaker:
    """An engine in this process, loaded by the first call. Its methods block, like those of `ServerSpeaker`."""

    def __init__(self, config: EngineConfig) -> None:
        from s1_mini.engine import ProductionTTSEngine

        self._engine = ProductionTTSEngine(config)

    @property
    def _started(self) -> ProductionTTSEngine:
        self._engine.start()
        return self._engine

    def speak(self, text: str, voice: str | None, speed: float, audio_format: Any) -> bytes:
        options: SpeechOptions = {"voice": voice, "speed": speed, "on_unsupported": "skip"}
        return self._started.generate(text, audio_format=audio_format, **options).audio_bytes

    def voices(self) -> list[dict[str, Any]]:
        return [{"name": voice.name, "description": voice.description} for voice in self._started.voices()]

    def clone(self, name: str, recording: bytes, transcript: str) -> None:
        self._started.add_voice(name, recording, transcript)

    def close(self) -> None:
        self._engine.stop(drain=False)


class ServerSpeaker:
    """A server, called over its HTTP API."""

    def __init__(self, url: str, api_key: str | None) -> None:
        import httpx2

        headers = {} if api_key is None else {"Authorization": f"Bearer {api_key}"}
        self._url, self._http = url, httpx2.Client(base_url=url.rstrip("/"), headers=headers, timeout=TIMEOUT_S)

    def speak(self, text: str, voice: str | None, speed: float, audio_format: Any) -> bytes:
        body = {"text": text, "voice": voice, "speed": speed, "format": audio_format, "on_unsupported": "skip"}
        content: bytes = self._call("POST", "/v1/tts", json=body).content
        return content

    def voices(self) -> list[dict[str, Any]]:
        listed = self._call("GET", "/v1/voices").json()["voices"]
        return [{name: voice[name] for name in ("name", "description")} for voice in listed]

    def clone(self, name: str, recording: bytes, transcript: str) -> None:
        form = {"name": name, "text": transcript}
        self._call("POST", "/v1/voices", data=form, files={"audio": ("recording", recording)})

    def close(self) -> None:
        self._http.close()

    def _call(self, method: str, path: str, **content: Any) -> Any:
        """Return the response. Raises `EngineError` with the server's message."""
        import httpx2

        try:
            response = self._http.request(method, path, **content)
        except (httpx2.HTTPError, httpx2.InvalidURL) as error:
            raise EngineError(f"no answer from the server at {self._url}: {error}") from None
        if response.is_success:
            return response
        try:
            raise EngineError(response.json()["error"]["message"])
        except (ValueError, KeyError, TypeError):
            raise EngineError(
                f"{self._url} answered with status {response.status_code}; is it an s1_mini server?"
            ) from None


def tools(speaker: EngineSpeaker | ServerSpeaker, folder: Path) -> Any:
    """Return the MCP server whose tools use `speaker` and write audio into `folder`."""
    from mcp.server import MCPServer
    from mcp.server.mcpserver import Audio
    from mcp.server.mcpserver.exceptions import ToolError

    from s1_mini.version import __version__

    server = MCPServer("s1_mini", instructions=INSTRUCTIONS, version=__version__, log_level="WARNING")

    async def work(function: Callable[..., Result], *arguments: Any) -> Result:
        """Run a function in a thread; `S1MiniError` and `OSError` become `ToolError`, whose message the model reads."""
        try:
            return await asyncio.to_thread(function, *arguments)
        except (S1MiniError, OSError) as error:
            raise ToolError(str(error)) from None

    @server.tool(structured_output=False)
    async def speak(text: str, voice: str | None = None, path: str | None = None, speed: float = 1.0) -> Any:
        """Speak a text. Writes the audio to `path` (such as out.mp3 or out.wav); without a path, returns it as mp3.

        `voice` is a name from list_voices; without one, the default voice speaks. `speed` is 0.25 to 4.
        """
        if path is not None:
            return await work(_write, speaker, folder, path, text, voice, speed)
        return Audio(data=await work(speaker.speak, text, voice, speed, "mp3"), format="mpeg")

    @server.tool()
    async def list_voices() -> list[dict[str, Any]]:
        """List the voices with their names and descriptions."""
        return await work(speaker.voices)

    @server.tool(structured_output=False)
    async def clone_voice(name: str, recording: str, transcript: str = "") -> Any:
        """Add a voice from a recording of a few seconds, so that `speak` can use it by its name.

        `recording` is the path of an audio file, `transcript` its exact words, which most models need. The
        speaker must have consented.
        """
        await work(
            lambda: speaker.clone(name, read_regular(_placed("recording", recording), MAX_RECORDING_BYTES), transcript)
        )
        return f"Added the voice {name!r}"

    return server


def _placed(name: str, path: str | Path) -> Path:
    """Return an absolute path. Raises `ParameterError` for a path that no system can have."""
    try:
        return Path(path).expanduser().resolve()
    except (ValueError, RuntimeError) as error:  # a NUL character, an unknown user
        raise ParameterError(name, f"{str(path)!r} is not a path: {error}") from None


def _write(
    speaker: EngineSpeaker | ServerSpeaker, folder: Path, path: str, text: str, voice: str | None, speed: float
) -> str:
    from s1_mini.audio.container import format_of

    target = _placed("path", folder / path)
    if not target.is_relative_to(folder):
        raise ParameterError("path", f"{path!r} is outside of the folder {str(folder)!r}; give a path in it")
    audio_format = format_of(target)
    if not target.parent.is_dir():
        raise ParameterError("path", f"the folder of {path!r} does not exist; give a path in {str(folder)!r}")
    content = speaker.speak(text, voice, speed, audio_format)
    target.write_bytes(content)
    return f"Wrote {len(content):,} bytes of {audio_format} audio to {target}"
