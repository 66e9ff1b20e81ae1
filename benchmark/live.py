"""Text that is still being generated: first audio after the first written word, and interruptions.

A client writes texts word by word and plays the audio as it arrives. `first audio` counts from the moment when the
first word is sent; `silent` is how long the player had nothing to play between the first audio and the end. For
interruptions, a client clears a long text up to a second after its first audio; times count from the moment when the
clearing message is sent. Prints a table for first audio and a table for interruptions, then one line of JSON.

python -m benchmark.live --turns 20 --modes sentence,clause,words
"""

from __future__ import annotations

import asyncio
import base64
import json
import random
import sys
import time
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any

from benchmark.command import columns, make_parser, names, quantile_ms
from benchmark.command import report as print_report
from benchmark.command import run as run_command
from benchmark.http_load import KEY, Place, served, until_ready
from s1_mini.bench.clients import play
from s1_mini.bench.report import describe_machine, load_average, table
from s1_mini.extras import require

OWN, DEEPGRAM = "/v1/audio/speech/stream", "/v1/speak?encoding=linear16&sample_rate=24000"
ELEVENLABS = "/v1/text-to-speech/default/multi-stream-input?output_format=pcm_24000&auto_mode=true"
RATE = 24_000  # Hz
MODES: dict[str, dict[str, object]] = {
    "sentence": {},
    "clause": {"start_at": "clause"},
    "words": {"start_words": 3},
    "both": {"start_at": "clause", "start_words": 5},
}
TEXTS = (
    "Thanks for calling us this morning, I have found your order and it will arrive on Thursday. Is that all right?",
    "The museum opens at nine, but the garden behind it is open all night, so you can go there first. It is free.",
    "That depends on the weather, of course, and on how much time you have. The path along the river is the best one.",
    "If you want to change the date of your flight, you can do that on the page of your booking until tomorrow night.",
    "Some people like to start with the chorus; others write the first verse and see where it goes. Both of them work.",
    "There are three good restaurants near the station. The one that I like best is small, so call before you go.",
)
LONG = "A sentence that goes on and on until the listener has heard enough of it. " * 20
INTERRUPTED_HEAD = ["protocol", "turns", "answer ms p50", "p95", "max", "audio after the message, ms p50", "max"]
FIRST_HEAD = ["mode", "turns", "first audio ms p50", "p95", "silent ms p50", "p95", "pieces"]
LIMIT_S = 120.0


def connect(place: Place, path: str) -> AbstractAsyncContextManager[Any]:
    """Open a WebSocket."""
    require("server", "a WebSocket client")
    from websockets.asyncio.client import connect as open_socket

    headers = {"Authorization": f"Bearer {place.key}"} if place.key else {}
    return open_socket(f"ws://{place.host}:{place.port}{path}", proxy=None, additional_headers=headers, max_size=None)


async def write(socket: Any, text: str, rate: float) -> None:
    """Send a text at `rate` words per second, then the message that ends it."""
    started = time.perf_counter()
    for number, word in enumerate(text.split()):
        await asyncio.sleep(max(0.0, started + number / rate - time.perf_counter()))
        await socket.send(json.dumps({"type": "input.text", "text": f"{word} "}))
    await socket.send(json.dumps({"type": "input.done"}))


async def speak(place: Place, text: str, rate: float, options: dict[str, object]) -> dict[str, float]:
    """Write one text; return seconds to the first audio, seconds without audio, and the number of pieces."""
    async with connect(place, OWN) as socket, asyncio.timeout(LIMIT_S):
        config = {"type": "session.config", "seed": 1, "sample_rate": RATE, **options}
        await socket.send(json.dumps(config))
        started, chunks, pieces = time.perf_counter(), [], 0
        writing = asyncio.create_task(write(socket, text, rate))
        async for message in socket:
            if isinstance(message, bytes):
                chunks.append((time.perf_counter() - started, len(message) / 2 / RATE))
            elif (kind := json.loads(message)["type"]) == "error":
                raise ValueError(message)
            else:
                pieces += kind == "audio.start"
        await writing
    starts, _ = play(chunks)
    silent_s = starts[-1] + chunks[-1][1] - starts[0] - sum(length for _, length in chunks)
    return {"first_s": starts[0], "silent_s": silent_s, "pieces": pieces}


async def measure_first(place: Place, mode: str, turns: int, rate: float, frames: int) -> dict[str, Any]:
    """Write texts one after the other."""
    options = MODES[mode] | {"max_new_tokens": frames}
    found = [await speak(place, TEXTS[turn % len(TEXTS)], rate, options) for turn in range(turns)]
    first_s, silent_s = ([each[name] for each in found] for name in ("first_s", "silent_s"))
    return {
        "mode": mode,
        "turns": turns,
        "first_ms_p50": quantile_ms(first_s, 0.5),
        "first_ms_p95": quantile_ms(first_s, 0.95),
        "silent_ms_p50": quantile_ms(silent_s, 0.5),
        "silent_ms_p95": quantile_ms(silent_s, 0.95),
        "pieces": sum(each["pieces"] for each in found) / turns,
    }


PROTOCOLS: dict[str, tuple[str, list[dict[str, object]], list[dict[str, object]], str]] = {
    # path, messages that begin, messages that clear, what the answer contains
    "own": (OWN, [{"type": "input.text", "text": LONG}], [{"type": "input.clear"}], "input.cleared"),
    "deepgram": (DEEPGRAM, [{"type": "Speak", "text": LONG}], [{"type": "Clear"}], "Cleared"),
    "elevenlabs": (
        ELEVENLABS,
        [{"text": LONG, "context_id": "a"}],
        [{"context_id": "a", "close_context": True}],
        '"isFinal": true',
    ),
}


async def audio_of(socket: Any, answer: str) -> AsyncIterator[tuple[float, float]]:
    """Yield arrival and seconds of audio of each message up to the answer."""
    async for message in socket:
        now = time.perf_counter()
        if isinstance(message, bytes):
            yield now, len(message) / 2 / RATE
        elif answer in message:
            yield now, 0.0
            return
        elif (audio := json.loads(message).get("audio")) is not None:
            yield now, len(base64.b64decode(audio)) / 2 / RATE


async def interrupt(place: Place, protocol: str, wait_s: float) -> tuple[float, float]:
    """Clear a text `wait_s` after its first audio; return seconds to the answer, and of audio received meanwhile."""
    path, begins, clears, answer = PROTOCOLS[protocol]
    async with connect(place, path) as socket, asyncio.timeout(LIMIT_S):
        for message in begins:
            await socket.send(json.dumps(message))
        audio = audio_of(socket, answer)
        await anext(audio)
        hearing = asyncio.create_task(collect(audio))
        await asyncio.sleep(wait_s)
        cleared = time.perf_counter()
        for message in clears:
            await socket.send(json.dumps(message))
        chunks = await hearing
    return chunks[-1][0] - cleared, sum(length for arrived, length in chunks if arrived > cleared)


async def collect(audio: AsyncIterator[tuple[float, float]]) -> list[tuple[float, float]]:
    """Return all audio."""
    return [each async for each in audio]


async def measure_interruptions(place: Place, protocol: str, turns: int) -> dict[str, Any]:
    """Interrupt texts one after the other, at different moments."""
    chance = random.Random(1)  # noqa: S311 - a choice, no secret
    found = [await interrupt(place, protocol, chance.uniform(0.0, 1.0)) for _ in range(turns)]
    answers, audio = [seconds for seconds, _ in found], [seconds for _, seconds in found]
    return {
        "protocol": protocol,
        "turns": turns,
        "answer_ms_p50": quantile_ms(answers, 0.5),
        "answer_ms_p95": quantile_ms(answers, 0.95),
        "answer_ms_max": quantile_ms(answers, 1.0),
        "audio_ms_p50": quantile_ms(audio, 0.5),
        "audio_ms_max": quantile_ms(audio, 1.0),
    }


async def measure(place: Place, turns: int, rate: float, modes: tuple[str, ...], frames: int) -> dict[str, Any]:
    """Run all measurements on a server."""
    await speak(place, TEXTS[0], 100.0, {"max_new_tokens": frames})  # warm-up
    return {
        "turns": turns,
        "words_per_s": rate,
        "load_average": load_average(),
        "first": [await measure_first(place, mode, turns, rate, frames) for mode in modes],
        "interruptions": [await measure_interruptions(place, protocol, turns) for protocol in PROTOCOLS],
    }


def main() -> int:
    """Measure the server at `--url`, or start one."""
    parser = make_parser(__doc__, opens=False)
    parser.add_argument("--url", help=f"URL of a running server [start one]; its key is read from {KEY}")
    parser.add_argument("--checkpoint", type=Path, help="checkpoint directory [the built-in model]")
    parser.add_argument("--turns", type=int, default=20, help="texts per mode, interruptions per protocol [20]")
    parser.add_argument("--rate", type=float, default=5.0, help="words per second [5]")
    parser.add_argument(
        "--modes", type=names(list(MODES)), default=tuple(MODES), help=f"modes, from {', '.join(MODES)} [all]"
    )
    parser.add_argument("--max-new-tokens", type=int, default=1024, help="maximum frames of a piece of text [1024]")
    options = parser.parse_args()
    work = options.turns, options.rate, options.modes, options.max_new_tokens
    if options.url is not None:
        place = Place.of(options.url)
        asyncio.run(until_ready(place, lambda: True))
        result = asyncio.run(measure(place, *work))
    else:
        with served(options.checkpoint) as (place, process):
            asyncio.run(until_ready(place, lambda: process.poll() is None))
            result = asyncio.run(measure(place, *work))
    result = describe_machine("cpu") | result
    print(f"{result['machine']}, torch {result['torch']}, commit {result['commit']}; {options.rate:g} words per second")
    print(table(FIRST_HEAD, columns(result["first"], result["first"][0])))
    print_report(INTERRUPTED_HEAD, columns(result["interruptions"], result["interruptions"][0]), result)
    return 0


if __name__ == "__main__":
    sys.exit(run_command(main))
