"""A program for test_pipecat.py: two turns and an interruption of Pipecat's class for Deepgram on SageMaker.

AWS's HTTP/2 client, which needs AWS, is replaced by one that connects to a container: it opens the path and query of
the request as a WebSocket, as SageMaker does, and passes the events on. Arguments: address of the container, its path
(or - for the path of the request). Prints the bytes of audio of each turn as JSON.
"""

from __future__ import annotations

import asyncio
import json
import sys
from types import ModuleType, SimpleNamespace
from typing import Any

from websockets.asyncio.client import connect
from websockets.exceptions import ConnectionClosed

ADDRESS, PATH = sys.argv[1:]


class Part(SimpleNamespace):
    """One of AWS's models: keyword arguments become attributes."""

    def __init__(self, value: Any = None, **fields: Any) -> None:
        super().__init__(value=value, **fields)


class Stream:
    """Both streams of a call, over a WebSocket."""

    def __init__(self, socket: Any) -> None:
        self._socket = socket
        self.input_stream = self

    async def send(self, event: Part) -> None:
        assert event.value.data_type == "UTF8"
        await self._socket.send(event.value.bytes_.decode())

    async def await_output(self) -> tuple[None, Stream]:
        return None, self

    async def receive(self) -> Part | None:
        try:
            message = await self._socket.recv()
        except ConnectionClosed:
            return None
        return Part(Part(bytes_=message.encode() if isinstance(message, str) else message))

    async def close(self) -> None:
        await self._socket.close()


class Client:
    """AWS's client."""

    def __init__(self, config: Any) -> None:
        assert ".amazonaws.com" in config.endpoint_uri

    async def invoke_endpoint_with_bidirectional_stream(self, call: Part) -> Stream:
        path = call.model_invocation_path if PATH == "-" else PATH
        return Stream(await connect(f"{ADDRESS}/{path}?{call.model_query_string}", proxy=None))


class Models(ModuleType):
    """A module whose missing names are `Part`."""

    __path__: list[str] = []  # noqa: RUF012 - of a package

    def __getattr__(self, name: str) -> Any:
        return Part


for name in ("", ".client", ".config", ".models"):
    sys.modules[f"aws_sdk_sagemaker_runtime_http2{name}"] = Models(name)
for name in ("smithy_aws_core", "smithy_aws_core.identity", "smithy_core", "smithy_core.aio"):
    sys.modules[name] = Models(name)
sys.modules["smithy_core.aio.eventstream"] = SimpleNamespace(DuplexEventStream=dict)  # type: ignore[assignment]
sys.modules["aws_sdk_sagemaker_runtime_http2.client"].SageMakerRuntimeHTTP2Client = Client  # type: ignore[attr-defined]

from pipecat.frames import frames  # noqa: E402 - after the modules that it imports
from pipecat.pipeline.pipeline import Pipeline  # noqa: E402
from pipecat.pipeline.worker import PipelineParams, PipelineWorker  # noqa: E402
from pipecat.processors.frame_processor import FrameDirection, FrameProcessor  # noqa: E402
from pipecat.services.deepgram.sagemaker.tts import DeepgramSageMakerTTSService  # noqa: E402
from pipecat.workers.runner import WorkerRunner  # noqa: E402


class Listener(FrameProcessor):  # type: ignore[misc]
    """Puts the frames behind the service into a queue."""

    def __init__(self) -> None:
        super().__init__()
        self.heard: asyncio.Queue[Any] = asyncio.Queue()

    async def process_frame(self, frame: Any, direction: Any) -> None:
        await super().process_frame(frame, direction)
        if direction == FrameDirection.DOWNSTREAM:
            self.heard.put_nowait(frame)
        await self.push_frame(frame, direction)

    async def until(self, kind: type) -> int:
        """Return the bytes of audio before a frame of a kind."""
        num_bytes = 0
        while not isinstance(frame := await asyncio.wait_for(self.heard.get(), 120), kind):
            assert not isinstance(frame, frames.ErrorFrame), frame
            num_bytes += len(frame.audio) if isinstance(frame, frames.TTSAudioRawFrame) else 0
        return num_bytes


async def main() -> None:
    """Speak two turns, interrupt a third one and speak a fourth."""
    settings = DeepgramSageMakerTTSService.Settings(voice="default")
    service = DeepgramSageMakerTTSService(endpoint_name="speech", region="us-east-1", settings=settings)
    listener = Listener()
    worker = PipelineWorker(
        Pipeline([service, listener]), params=PipelineParams(audio_out_sample_rate=16_000), cancel_on_idle_timeout=False
    )
    runner = WorkerRunner(handle_sigint=False)
    await runner.add_workers(worker)
    running = asyncio.create_task(runner.run())
    await listener.until(frames.StartFrame)
    heard: dict[str, int] = {}
    for name in ("first", "second"):
        await worker.queue_frame(frames.TTSSpeakFrame("Good morning."))
        heard[name] = await listener.until(frames.TTSStoppedFrame)
    await worker.queue_frame(frames.TTSSpeakFrame("A sentence that goes on and on. " * 20))
    await listener.until(frames.TTSAudioRawFrame)
    await worker.queue_frame(frames.InterruptionFrame())
    await listener.until(frames.InterruptionFrame)
    await worker.queue_frame(frames.TTSSpeakFrame("Goodbye."))
    heard["after"] = await listener.until(frames.TTSStoppedFrame)
    await worker.queue_frame(frames.EndFrame())
    await running
    sys.stdout.write(json.dumps(heard))


asyncio.run(main())
