"""Speak with OpenAI's client: only the base URL and the key change. Needs `pip install openai`."""

import os

from openai import OpenAI

url = os.environ.get("S1_MINI_URL", "http://localhost:8080")
client = OpenAI(base_url=f"{url}/v1", api_key=os.environ.get("S1_MINI_API_KEY", "none"))

with client.audio.speech.with_streaming_response.create(
    model="s1-mini",
    voice="nova",
    input="This is OpenAI's client with another base URL.",
    response_format="mp3",
    speed=1.1,
) as response:
    response.stream_to_file("openai.mp3")
