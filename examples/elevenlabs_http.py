"""Get audio and the time of each character from the route of ElevenLabs' API. Needs `pip install httpx2`."""

import base64
import os
from pathlib import Path

import httpx2

url = os.environ.get("S1_MINI_URL", "http://localhost:8080")

response = httpx2.post(
    f"{url}/v1/text-to-speech/default/with-timestamps",
    params={"output_format": "mp3_44100_128"},
    headers={"xi-api-key": os.environ.get("S1_MINI_API_KEY", "none")},
    json={"text": "Every character has a time."},
    timeout=60,
)
response.raise_for_status()
answer = response.json()

Path("elevenlabs.mp3").write_bytes(base64.b64decode(answer["audio_base64"]))
if times := answer["alignment"]:  # None if the checkpoint does not report times
    for character, start_s in zip(times["characters"], times["character_start_times_seconds"], strict=True):
        print(f"{start_s:6.2f} s  {character}")
