"""The worker's side of the messages of `tokens.py`.

The worker runs in its own environment, which may have other versions of all packages except this one.
"""

from __future__ import annotations

import os
import sys
import traceback
from collections.abc import Callable, Iterable, Mapping
from queue import Empty, SimpleQueue
from typing import Any, Protocol

from s1_mini.exceptions import ConfigurationError, GenerationError
from s1_mini.remote.channel import START, Cancel, Channel, Failed, Made, Result, own_pipes, portable

Begun = tuple[int, list[int], bool]  # number of a sequence, its new tokens, whether it is complete


class TokenMaker(Protocol):
    """Generates the tokens of many sequences, one step for all at a time."""

    @property
    def has_work(self) -> bool:
        """Whether any sequence is unfinished."""

    def begin(self, number: int, request: Mapping[str, Any]) -> None:
        """Begin a sequence. Any exception ends only this sequence."""

    def drop(self, number: int) -> None:
        """Cancel a sequence; does nothing if it has ended."""

    def step(self) -> Iterable[Begun]:
        """Run one step of all sequences; return their new tokens."""


def serve(open_maker: Callable[[Mapping[str, Any]], tuple[TokenMaker, Mapping[str, Any]]]) -> None:
    """Generate tokens until the input ends. `open_maker` returns the generator and facts for the log.

    Never returns, because libraries with their own threads make an orderly exit slow.
    """
    inbox: SimpleQueue[Any] = SimpleQueue()
    channel = Channel(
        *own_pipes(),
        name="server",
        on_message=inbox.put,
        on_unsent=lambda _, error: traceback.print_exception(error),
        on_end=lambda _: os._exit(0),
    )
    channel.start()
    try:
        _serve(open_maker, inbox, channel)
    except BaseException:  # the process ends, and nothing else prints the error
        traceback.print_exc()
        sys.stderr.flush()
        os._exit(1)
    os._exit(0)


def _serve(
    open_maker: Callable[[Mapping[str, Any]], tuple[TokenMaker, Mapping[str, Any]]],
    inbox: SimpleQueue[Any],
    channel: Channel,
) -> None:
    try:
        maker, facts = open_maker(*inbox.get().args)
    except ConfigurationError as error:
        channel.send(Failed(START, portable(error)))
        channel.close()
        return
    channel.send(Result(START, dict(facts)))
    while True:
        _take_in(inbox, maker, channel)
        for made in maker.step():
            channel.send(Made(*made))


def _take_in(inbox: SimpleQueue[Any], maker: TokenMaker, channel: Channel) -> None:
    """Handle all pending messages; if no sequence is unfinished, wait for a message."""
    while True:
        try:
            message = inbox.get(block=not maker.has_work)
        except Empty:
            return
        if isinstance(message, Cancel):
            maker.drop(message.number)
            continue
        try:
            maker.begin(message.number, *message.args)
        except Exception as error:  # any error of the generator ends the sequence
            reason = f"the worker rejected the request: {type(error).__name__}: {error}"
            channel.send(Failed(message.number, GenerationError(reason)))
