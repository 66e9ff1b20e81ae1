"""Deepgram's turn-based WebSocket `/v2/speak`.

Client: `Speak`, `Flush`, `Interrupt`, `Configure`, `Close`. Server: binary audio, `Connected`, `SpeechStarted`,
`Flushed`, `SpeechMetadata`, `SpeechInterrupted`, `ConfigureSuccess`, `ConfigureFailure`, `SessionMetadata`, `Warning`,
`Error`.

A turn has the text up to a `Flush`. One turn is active; later ones wait until it has ended. `Interrupt` ends the active
turn.
"""

from __future__ import annotations

import asyncio
import secrets
from collections import deque
from dataclasses import dataclass, field
from functools import partial
from typing import Annotated, Any, Literal

from fastapi import APIRouter, WebSocket
from pydantic import ConfigDict, Field

from s1_mini.exceptions import TextError
from s1_mini.server.protocols.deepgram import MODEL, Deepgram, Options, config_from
from s1_mini.server.schemas import SessionConfig, SpeechRequest, Strict
from s1_mini.server.session import Messages, Session, converse, read_options
from s1_mini.server.speech import AudioResponse, Times
from s1_mini.server.speech_queue import MAX_ITEMS, Track
from s1_mini.types import MAX_SPEED, MIN_SPEED

router = APIRouter()

Speed = Annotated[float, Field(ge=MIN_SPEED, le=MAX_SPEED)]
NO_CONTROLS = {"pronunciations_applied": 0, "breaks_applied": 0, "pronunciation_warnings": 0}
ROUNDING_S = 0.001  # offsets are whole milliseconds
MAX_OFFSET_MS = 10**8  # longer than a session
ERROR_CODES = {"request_invalid": "MESSAGE-0000", "body_invalid": "MESSAGE-0000", "text_invalid": "DATA-0000"}


class TurnOptions(Options):
    """Query parameters; others are refused."""

    model_config = ConfigDict(extra="forbid")

    speed: Speed = 1.0
    tag: str | None = None  # ignored, like the next one
    mip_opt_out: str | None = None


class Speak(Strict):
    """A piece of the turn's text."""

    type: Literal["Speak"]
    text: str


class Control(Strict):
    """Flush: the turn's text is complete; Close: the same, and the session ends after all turns."""

    type: Literal["Flush", "Close"]


class Offset(Strict):
    """Audio that the client has played since the start of the session."""

    type: Literal["time_ms"] = "time_ms"
    value: int = Field(ge=0, le=MAX_OFFSET_MS)


class Interrupt(Strict):
    """Stop the audio of the active turn."""

    type: Literal["Interrupt"]
    playback_offset: Offset | None = None


class Configure(Strict):
    """Set the speed of later turns."""

    type: Literal["Configure"]
    speed: float | None = Field(None, allow_inf_nan=False)


@router.websocket("/v2/speak")
async def speak_turns(socket: WebSocket) -> None:
    options = read_options(socket, TurnOptions)
    config = await config_from(socket, options)
    await converse(socket, partial(DeepgramTurns, config=config.model_copy(update={"speed": options.speed})))


@dataclass(eq=False)
class Turn(Track):
    """The text up to a `Flush`, and when its parts are spoken."""

    id: str = field(default_factory=lambda: f"dg_sp_{secrets.token_hex(6)}")
    text: str = ""
    is_flushed: bool = False
    begin: int = 0  # first position of the stretch of text that is being spoken
    stop: int = 0  # position after it
    begin_s: float = 0.0  # start of its audio, from the start of the turn
    spoken: list[tuple[float, int]] = field(default_factory=list)  # end and position of words and stretches of text

    def data(self) -> dict[str, Any]:
        counts = {"input_character_count": len(self.text), "billable_character_count": len(self.text)}
        times = {"audio_duration_ms": round(1000 * self.sent_s)}
        return {"speech_id": self.id} | times | counts | {"controls_applied": NO_CONTROLS}

    def heard(self, seconds: float) -> dict[str, str]:
        """Divide the text after the last word that ends within `seconds`, from the start of the turn."""
        position = max((stop for end_s, stop in self.spoken if end_s <= seconds + ROUNDING_S), default=0)
        return {"text_spoken": self.text[:position], "text_remaining": self.text[position:]}


class DeepgramTurns(Deepgram[Turn]):
    """Deepgram's messages for turns. The `_lock` keeps messages and the end of a turn apart."""

    messages = Messages(Speak | Control | Interrupt | Configure)

    def __init__(self, session: Session, config: SessionConfig) -> None:
        super().__init__(session, config)
        session.text.options = {"word_times": session.state.engine.has_word_times}
        self._config, self._configured = config, {} if config.speed == 1 else {"speed": config.speed}
        self._turns: deque[Turn] = deque()  # the active one first
        self._before_s = 0.0  # audio before the active turn; only that which was played, if a turn was interrupted
        self._interrupted_s = -1.0  # offset of the last interruption
        self._has_audio = False
        self._num_waiting = 0  # characters of the turns that wait for the active one
        self._num_characters = 0
        self._is_closing = False
        self._lock = asyncio.Lock()

    async def begin(self) -> None:
        name = {"model_name": self._config.voice or "default", "model_version": MODEL, "model_uuids": []}
        await self.session.send({"type": "Connected", "request_id": self.session.record.id} | name)

    async def act(self, message: Speak | Control | Interrupt | Configure) -> None:
        async with self._lock:
            match message:
                case Interrupt():
                    await self._interrupt(message.playback_offset)
                case Configure():
                    await self._configure(message.speed)
                case _ if self._is_closing:
                    pass
                case Speak():
                    await self._speak(message.text)
                case Control():
                    await self._flush(closes=message.type == "Close")

    async def _speak(self, text: str) -> None:
        """Add text to the last turn, or to a new one. Raises the errors of `TextInput.add`."""
        if not text:
            return
        if not self._turns or self._turns[-1].is_flushed:
            if len(self._turns) >= MAX_ITEMS:
                reason = f"comes after {MAX_ITEMS} turns that are not spoken yet, which is the limit"
                raise TextError("text", f"{reason}; send turns more slowly")
            self._turns.append(Turn(self._config))
            if len(self._turns) == 1:
                await self._activate()
        session, turn, active = self.session, self._turns[-1], self._turns[0]
        turn.text += text
        if turn is active:
            await session.text.add(turn, text)
            return
        self._num_waiting += len(text)
        ahead = session.queue.num_waiting + len(active.rest) + self._num_waiting
        if ahead > (allowed := session.state.engine.config.max_text_length):
            raise TextError("text", f"that is not spoken yet has {ahead} characters; the limit is {allowed}")

    async def _activate(self) -> None:
        turn = self._turns[0]
        await self.session.send({"type": "SpeechStarted", "speech_id": turn.id})
        await self.session.text.add(turn, turn.text)
        if turn.is_flushed:
            await self._complete(turn)

    async def _flush(self, *, closes: bool) -> None:
        turn = self._turns[-1] if self._turns and not self._turns[-1].is_flushed else None
        if turn is not None:
            turn.is_flushed = True
            if turn is self._turns[0]:
                await self._complete(turn)
        elif not closes:
            await self._warn("Flush has no effect, because no text came before it.", "NO_ACTIVE_SPEECH")
        self._is_closing = closes
        self._close_if_done()

    async def _complete(self, turn: Turn) -> None:
        self.session.text.flush(turn)
        await self.session.send({"type": "Flushed", "speech_id": turn.id})
        self.session.queue.then(turn, partial(self._end_turn, turn))

    async def _end_turn(self, turn: Turn) -> None:
        async with self._lock:
            if not turn.sent_s:
                await self._warn("The turn has nothing to speak.", "NO_SYNTHESIZABLE_TEXT")
            await self.session.send({"type": "SpeechMetadata"} | turn.data())
            self._before_s += turn.sent_s
            await self._go_on()

    async def _go_on(self) -> None:
        """Remove the active turn, which has ended, and begin the next one."""
        self._num_characters += len(self._turns.popleft().text)
        if self._turns:
            self._num_waiting -= len(self._turns[0].text)
            await self._activate()
        self._close_if_done()

    def _close_if_done(self) -> None:
        if self._is_closing and not self._turns:
            self.session.text.close()

    async def _interrupt(self, offset: Offset | None) -> None:
        offset_s = None if offset is None else offset.value / 1000
        if not self._turns and offset_s is not None:
            self._before_s = min(offset_s, self._before_s)  # the client plays no more of the turns before
        if (objection := self._objection(offset_s)) is not None:
            reason, code = objection
            await self._warn(f"Interrupt was ignored: {reason}.", code)
            return
        turn = self._turns[0]
        await self.session.text.clear(turn)
        made_s = self._before_s + turn.sent_s
        heard = {} if offset_s is None else turn.heard(offset_s - self._before_s)
        self._before_s = self._interrupted_s = made_s if offset_s is None else min(offset_s, made_s)
        played = {"audio_played_ms": round(1000 * self._before_s)}
        await self.session.send({"type": "SpeechInterrupted"} | played | heard | {"metadata": turn.data()})
        await self._go_on()

    def _objection(self, offset_s: float | None) -> tuple[str, str] | None:
        """Return why an interruption has no effect, and the code of its warning."""
        if not self._turns:
            return "no turn is active", "NO_ACTIVE_SPEECH"
        if not self._has_audio:
            return "no audio exists", "NO_AUDIO_GENERATED"
        if offset_s is not None and offset_s <= self._interrupted_s:
            return "its offset is not after that of the previous one", "INVALID_INTERRUPT_OFFSET"
        return None

    async def _configure(self, speed: float | None) -> None:
        if speed is not None and not MIN_SPEED <= speed <= MAX_SPEED:
            reason = f"speed must be between {MIN_SPEED:g} and {MAX_SPEED:g}"
            failure = {"code": "SPEED_OUT_OF_RANGE", "field": "speed", "value": speed, "description": reason}
            await self.session.send({"type": "ConfigureFailure"} | failure)
            return
        if speed is not None:
            self._configured = {"speed": speed}
            self._config = self._config.model_copy(update=self._configured)
        await self.session.send({"type": "ConfigureSuccess", "applied": self._configured})

    async def start(self, track: Turn, request: SpeechRequest, speech: AudioResponse) -> None:
        track.begin = max(track.stop, track.text.find(request.speech.text, track.stop))
        track.begin_s, track.stop = track.sent_s, track.begin + len(request.speech.text)
        await super().start(track, request, speech)

    async def send_audio(self, track: Turn, piece: bytes, times: Times) -> None:
        self._has_audio = True
        track.spoken += [(track.begin_s + word.end_s, track.begin + word.stop) for word in times.words]
        await super().send_audio(track, piece, times)

    async def finish(self, track: Turn, seconds: float) -> None:
        track.spoken.append((track.begin_s + seconds, track.stop))

    async def end(self) -> None:
        totals = {"total_audio_duration_ms": round(1000 * self._before_s)}
        totals |= dict.fromkeys(("total_input_character_count", "total_billable_character_count"), self._num_characters)
        await self.session.send({"type": "SessionMetadata"} | totals)

    def error(self, description: dict[str, Any], close_code: int) -> dict[str, Any]:
        content = super().error(description, close_code)
        return content | {"code": ERROR_CODES.get(content["code"], "NET-0000")}
