"""Answer Twilio media streams: speak a greeting to every caller as µ-law at 8 kHz.

Needs `pip install httpx2 websockets`. Point the `<Connect><Stream url="wss://…"/></Connect>` of a call at this server,
through a proxy with TLS. Run: python twilio.py [PORT]
"""

import base64
import json
import os
import sys

import httpx2
from websockets.sync.server import ServerConnection, serve

URL = os.environ.get("S1_MINI_URL", "http://localhost:8080")
HEADERS = {"Authorization": "Bearer " + os.environ.get("S1_MINI_API_KEY", "none")}
GREETING = "Hello. This call is answered by a machine."


def answer(socket: ServerConnection) -> None:
    """Speak the greeting once the stream has started, then wait until Twilio has played it or the caller hangs up."""
    for message in socket:
        event = json.loads(message)
        if event["event"] == "start":
            stream = event["start"]["streamSid"]
            body = {"text": GREETING, "format": "mulaw", "stream": True}
            with httpx2.stream("POST", f"{URL}/v1/tts", json=body, headers=HEADERS, timeout=60) as response:
                response.raise_for_status()
                for audio in response.iter_bytes():
                    media = {"payload": base64.b64encode(audio).decode()}
                    socket.send(json.dumps({"event": "media", "streamSid": stream, "media": media}))
            socket.send(json.dumps({"event": "mark", "streamSid": stream, "mark": {"name": "greeting"}}))
        elif event["event"] in ("mark", "stop"):
            return


if __name__ == "__main__":
    with serve(answer, "127.0.0.1", int(sys.argv[1]) if len(sys.argv) > 1 else 8081) as server:
        print(f"listening on port {server.socket.getsockname()[1]}", flush=True)
        server.serve_forever()
