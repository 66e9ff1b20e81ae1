"""The WebSocket `/v1/audio/speech/stream`; SageMaker's route takes the same messages (`deepgram.py`).

Client: `session.config` (optional), any number of `input.text` and `input.clear`, `input.done`. Server, for each
stretch of text: `audio.start`, binary messages (with `word_times` also `audio.words` and `audio.marks`), `audio.done`;
`input.cleared` after `input.clear`; `session.done` at the end. A stretch with invalid markup gets `audio.error`, and
the session continues. Any other error is sent as `error` and ends the session. The names are those of vLLM-Omni's
speech endpoints on SageMaker; `input.clear` and `input.cleared` are ours.
"""

from __future__ import annotations

import asyncio
from typing import Any

from fastapi import APIRouter, WebSocket

from s1_mini.audio.reference import read_recording
from s1_mini.exceptions import NothingToSpeakError, RequestError
from s1_mini.server.bodies import in_turn
from s1_mini.server.errors import describe
from s1_mini.server.schemas import InputClear, InputDone, InputText, SessionConfig, SpeechRequest, decode_base64
from s1_mini.server.session import Messages, Protocol, Session, converse
from s1_mini.server.speech import AudioResponse, Times
from s1_mini.server.speech_queue import Track

router = APIRouter()

NOTHING = "contains nothing to speak; send at least one letter, number or symbol"
Input = SessionConfig | InputText | InputClear | InputDone


@router.websocket("/v1/audio/speech/stream")
async def speak_stream(socket: WebSocket) -> None:
    await converse(socket, OwnProtocol)


class OwnProtocol(Protocol[Track]):
    """Our own messages: audio is binary, and each stretch of text has an index."""

    messages = Messages(Input)

    def __init__(self, session: Session, config: SessionConfig | None = None) -> None:
        """`config` is used until the client sends one."""
        super().__init__(session)
        self._track = Track(config or SessionConfig(type="session.config"))
        self._has_text = False
        self._unspeakable: NothingToSpeakError | None = None  # error of the first stretch with nothing to speak
        self._warnings: list[str] = []  # about stretches with nothing to speak, sent with the next message

    async def act(self, message: Input) -> None:
        session = self.session
        match message:
            case InputClear():
                await session.text.clear(self._track)
                sent_s = round(self._track.sent_s, 3)
                played = {} if message.played_s is None else {"played_s": min(message.played_s, sent_s)}
                await session.send({"type": "input.cleared", "seconds": sent_s} | played)
            case _ if session.queue.is_closed:
                pass
            case SessionConfig():
                await self._configure(message)
            case InputText():
                self._has_text = True
                await session.text.add(self._track, message.text)
            case InputDone():
                session.text.flush(self._track)
                session.text.close()
                if self._has_text and not self._track.says:
                    self._unspeakable = NothingToSpeakError("text", NOTHING)

    async def _configure(self, config: SessionConfig) -> None:
        state = self.session.state
        if config.voice is not None:
            await asyncio.to_thread(state.engine.describe_voice, config.voice)  # raises for an unknown voice
        coded, config.reference_audio = config.reference_audio, None
        recording = None if coded is None else await in_turn(state, decode_base64, coded)
        if recording is not None:
            read_recording(recording, state.engine.config.max_reference_bytes)
        self.session.text.check(config, recording)
        self._track.end_stream()
        self._track.config, self._track.voice = config, ""
        self.session.queue.set_recording(recording)

    async def start(self, track: Track, request: SpeechRequest, speech: AudioResponse) -> None:  # noqa: ARG002
        start: dict[str, Any] = {
            "format": request.audio_format,
            "sample_rate": speech.sample_rate,
            "text": request.speech.text,
        }
        if request.return_spoken_text:
            start["spoken_text"] = speech.spoken_text
        number = {"type": "audio.start", "index": self.session.queue.num_spoken}
        await self.session.send(number | start | self._warning(speech.warning))

    async def send_audio(self, track: Track, piece: bytes, times: Times) -> None:  # noqa: ARG002
        number = {"index": self.session.queue.num_spoken}
        for name, entries in times.as_json().items():
            if entries:
                await self.session.send({"type": f"audio.{name}"} | number | {name: entries})
        if piece:
            await self.session.send_bytes(piece)

    async def finish(self, track: Track, seconds: float) -> None:  # noqa: ARG002
        await self.session.send({"type": "audio.done", "index": self.session.queue.num_spoken - 1, "seconds": seconds})

    async def reject(self, track: Track, text: str, error: RequestError) -> None:  # noqa: ARG002
        await self.session.send({"type": "audio.error", "text": text} | describe(error, self.session.record.id))

    async def skip(self, error: NothingToSpeakError) -> None:
        self._unspeakable = self._unspeakable or error
        self._warnings += [error.warning] if error.warning else []

    async def end(self) -> None:
        if self._unspeakable is not None and not self.session.queue.num_spoken:
            raise self._unspeakable
        await self.session.send({"type": "session.done", "sentences": self.session.queue.num_spoken} | self._warning())

    def _warning(self, warning: str | None = None) -> dict[str, str]:
        """Return the field `warning` for the next message, if any, and clear it."""
        warnings, self._warnings = [*self._warnings, *([warning] if warning else [])], []
        return {"warning": " ".join(dict.fromkeys(warnings))} if warnings else {}
