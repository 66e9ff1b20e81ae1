"""Two turns with Deepgram's own client, the second one interrupted; prints types of messages and figures as JSON."""

from __future__ import annotations

import json
import sys
from typing import Any

from deepgram import DeepgramClient
from deepgram.environment import DeepgramClientEnvironment
from deepgram.speak.v2 import types


def main(port: str) -> dict[str, Any]:
    """Speak with the server on `port`."""
    url, sockets = f"http://127.0.0.1:{port}", f"ws://127.0.0.1:{port}"
    environment = DeepgramClientEnvironment(base=url, production=sockets, agent=sockets, agent_rest=url)
    kinds, num_bytes = [], 0
    client = DeepgramClient(api_key="none", environment=environment)
    with client.speak.v2.connect(model="default", encoding="linear16", sample_rate="24000") as connection:

        def until(kind: str) -> Any:
            nonlocal num_bytes
            while True:
                message = connection.recv()
                if isinstance(message, bytes):
                    num_bytes += len(message)
                else:
                    kinds.append(message.type)
                if kind == getattr(message, "type", "audio"):
                    return message

        connection.send_speak(types.SpeakV2Speak(text="Good "))
        connection.send_speak(types.SpeakV2Speak(text="morning."))
        connection.send_flush()
        turn = until("SpeechMetadata")
        heard_ms = num_bytes // 48
        connection.send_configure(types.SpeakV2Configure(speed=1.1))
        connection.send_speak(types.SpeakV2Speak(text="A sentence that goes on and on. " * 100))
        until("audio")
        offset = types.SpeakV2InterruptPlaybackOffset(value=heard_ms + 10)
        connection.send_interrupt(types.SpeakV2Interrupt(playback_offset=offset))
        interrupted = until("SpeechInterrupted")
        connection.send_close()
        totals = until("SessionMetadata")
    return {
        "kinds": kinds,
        "turn": (turn.input_character_count, abs(turn.audio_duration_ms - heard_ms) <= 1),
        "interrupted": (interrupted.audio_played_ms - heard_ms, len(interrupted.text_remaining)),
        "totals": (totals.total_audio_duration_ms - heard_ms, totals.total_input_character_count),
    }


if __name__ == "__main__":
    sys.stdout.write(json.dumps(main(sys.argv[1])) + "\n")
