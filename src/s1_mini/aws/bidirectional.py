"""InvokeEndpointWithBidirectionalStream: text is sent line by line while audio is received.

boto3 does not have this operation, because the operation needs HTTP/2. AWS publishes a separate client, which is a
preview and needs Python 3.12. A local endpoint is called by its WebSocket route, with the same messages.
"""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import AsyncGenerator, AsyncIterator, Iterable, Iterator, Mapping
from contextlib import asynccontextmanager, suppress
from importlib.util import find_spec
from typing import Any, Protocol

from s1_mini.audio.container import wav_header
from s1_mini.aws.call import RUNTIME, Invocation, explained_call
from s1_mini.aws.clients import Clients
from s1_mini.aws.failures import no_answer
from s1_mini.exceptions import ConfigurationError, DeploymentError, ParameterError
from s1_mini.extras import require

FORMATS = ("wav", "pcm")  # the server encodes sentences separately, and their audio in other formats cannot be joined
PACKAGE = "aws-sdk-sagemaker-runtime-http2[awscrt]~=0.12.0"
PORT = 8443  # of the HTTP/2 endpoint
CLOSE_S = 5.0  # timeout for closing the request stream


class Channel(Protocol):
    """A connection that carries text messages as `str` and audio as `bytes`."""

    async def send(self, message: str) -> None: ...

    def __aiter__(self) -> AsyncIterator[str | bytes]: ...


def converse(clients: Clients, invocation: Invocation, lines: Iterable[str]) -> Iterator[bytes]:
    """Yield the audio of `lines` as it is generated. Raises `S1MiniError`, possibly after some parts."""
    config = {key: value for key, value in invocation.body.items() if key not in {"text", "format"}}
    audio_format = invocation.body.get("format", "wav")
    if audio_format not in FORMATS:
        raise ParameterError(
            "format", f"{audio_format!r} cannot be used with --mode bidirectional; use one of {', '.join(FORMATS)}"
        )
    if invocation.target_model or invocation.component or invocation.prefix_id:
        raise DeploymentError(
            "--mode bidirectional does not support --target-model, --component or --prefix-id; use --mode stream"
        )
    with explained_call(clients, invocation), asyncio.Runner() as runner:
        parts = _parts(_connect(clients, invocation.name), config, lines, is_wav=audio_format == "wav")

        async def receive() -> bytes | None:
            return await anext(parts, None)

        try:
            while (part := runner.run(receive())) is not None:
                yield part
        finally:
            runner.run(parts.aclose())


async def _parts(
    connection: Any, config: Mapping[str, Any], lines: Iterable[str], *, is_wav: bool
) -> AsyncGenerator[bytes, None]:
    is_first = True
    async with connection as channel:
        sending = asyncio.create_task(_send(channel, config, lines))
        try:
            async for message in channel:
                if isinstance(message, bytes):
                    yield message
                    continue
                event = json.loads(message)
                if event["type"] == "error":
                    error = event["error"]
                    raise DeploymentError(f"the container answered {error['code']}: {error['message']}")
                if event["type"] == "session.done":
                    return
                if event["type"] == "audio.start" and is_first:
                    is_first = False
                    if is_wav:
                        yield wav_header(event["sample_rate"])
            raise DeploymentError("the stream ended before session.done")
        finally:
            sending.cancel()
            await asyncio.gather(sending, return_exceptions=True)


async def _send(channel: Channel, config: Mapping[str, Any], lines: Iterable[str]) -> None:
    await channel.send(json.dumps({"type": "session.config", "response_format": "pcm", **config}))
    async for line in _read(lines):
        await channel.send(json.dumps({"type": "input.text", "text": line}))
    await channel.send(json.dumps({"type": "input.done"}))


async def _read(lines: Iterable[str]) -> AsyncIterator[str]:
    """Yield `lines`, read in a daemon thread, because a blocked read of stdin must not keep the process alive."""
    loop, queue = asyncio.get_running_loop(), asyncio.Queue[str | None]()

    def read() -> None:
        try:
            for line in lines:
                loop.call_soon_threadsafe(queue.put_nowait, line)
            loop.call_soon_threadsafe(queue.put_nowait, None)
        except RuntimeError:  # the loop is closed
            return

    threading.Thread(target=read, daemon=True).start()
    while (line := await queue.get()) is not None:
        yield line


def _connect(clients: Clients, name: str) -> Any:
    url = clients[RUNTIME].meta.endpoint_url
    if url.startswith("http:"):
        return _connect_here(url)
    if find_spec("aws_sdk_sagemaker_runtime_http2") is None:
        raise ConfigurationError(
            "--mode bidirectional on AWS needs AWS's HTTP/2 client, which boto3 does not include and which requires "
            f'Python 3.12: run `pip install "{PACKAGE}"`, or use --mode stream'
        )
    return _connect_to_aws(clients, name, f"{url}:{PORT}")


@asynccontextmanager
async def _connect_here(url: str) -> AsyncIterator[Channel]:
    require("server", "a bidirectional stream of a local endpoint")
    from websockets.asyncio.client import connect

    target = f"ws{url.removeprefix('http')}/invocations-bidirectional-stream"
    try:
        socket = await connect(target, proxy=None, max_size=None)
    except OSError:
        raise DeploymentError(no_answer(url)) from None
    async with socket:
        yield socket


@asynccontextmanager
async def _connect_to_aws(clients: Clients, name: str, url: str) -> AsyncIterator[Channel]:
    from aws_sdk_sagemaker_runtime_http2.client import AsyncSageMakerRuntimeHTTP2Client
    from aws_sdk_sagemaker_runtime_http2.config import AsyncSageMakerRuntimeHTTP2Config
    from aws_sdk_sagemaker_runtime_http2.models import InvokeEndpointWithBidirectionalStreamInput
    from smithy_aws_core.identity import AWSCredentialsIdentity, StaticCredentialsResolver
    from smithy_http.aio.crt import AWSCRTHTTPClient

    keys = clients.credentials()  # from boto3, so that profiles and sign-ins work in all modes
    identity = AWSCredentialsIdentity(
        access_key_id=keys.access_key, secret_access_key=keys.secret_key, session_token=keys.token
    )
    config = await AsyncSageMakerRuntimeHTTP2Config.resolve(
        region=clients.region,
        endpoint_uri=url,
        aws_credentials_identity_resolver=StaticCredentialsResolver(identity),
        transport=AWSCRTHTTPClient(),
    )
    async with AsyncSageMakerRuntimeHTTP2Client(config) as client:
        stream = await client.invoke_endpoint_with_bidirectional_stream(
            InvokeEndpointWithBidirectionalStreamInput(endpoint_name=name)
        )
        try:
            yield _AwsChannel(stream)
        finally:
            with suppress(TimeoutError, OSError):  # after a failure, AWS no longer reads the request stream
                async with asyncio.timeout(CLOSE_S):
                    await stream.input_stream.close()


class _AwsChannel:
    def __init__(self, stream: Any) -> None:
        self._stream = stream

    async def send(self, message: str) -> None:
        from aws_sdk_sagemaker_runtime_http2.models import RequestPayloadPart, RequestStreamEventPayloadPart

        part = RequestPayloadPart(bytes_=message.encode(), data_type="UTF8", completion_state="COMPLETE")
        await self._stream.input_stream.send(RequestStreamEventPayloadPart(part))

    async def __aiter__(self) -> AsyncIterator[str | bytes]:
        _, events = await self._stream.await_output()
        text = b""
        async for event in events:
            part = event.value
            if isinstance(part, Exception):
                raise part
            if part.data_type != "UTF8":
                yield part.bytes_
                continue
            text += part.bytes_
            if part.completion_state != "PARTIAL":
                yield text.decode()
                text = b""
