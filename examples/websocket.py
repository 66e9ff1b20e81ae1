"""Send text piece by piece, as a language model writes it, and receive its audio. Needs `pip install websockets`."""

import json
import os
import wave

from websockets.sync.client import connect

url = os.environ.get("S1_MINI_URL", "http://localhost:8080").replace("http", "ws", 1)
headers = {"Authorization": "Bearer " + os.environ.get("S1_MINI_API_KEY", "none")}
pieces = ["Text may be ", "cut anywhere. ", "Each sentence is ", "spoken as soon ", "as it is complete."]

address = f"{url}/v1/audio/speech/stream"
with connect(address, additional_headers=headers) as socket, wave.open("websocket.wav", "wb") as file:
    file.setnchannels(1)
    file.setsampwidth(2)
    file.setframerate(24_000)
    socket.send(json.dumps({"type": "session.config", "response_format": "pcm", "sample_rate": 24_000}))
    for piece in pieces:
        socket.send(json.dumps({"type": "input.text", "text": piece}))
    socket.send(json.dumps({"type": "input.done"}))
    for message in socket:
        if isinstance(message, bytes):
            file.writeframes(message)
            continue
        event = json.loads(message)
        if event["type"] == "error":
            raise SystemExit(event["error"]["message"])
        if event["type"] == "session.done":
            break
