"""The worker's side of the pipes of `tokens.py`, which describes the messages.

The worker runs in its own environment, which may have other versions of all packages, so this module imports as little
as possible.
"""

from __future__ import annotations

import json
import os
import sys
import threading
import traceback
from collections.abc import Callable, Iterable, Mapping
from queue import Empty, SimpleQueue
from typing import Any, Protocol

from s1_mini.exceptions import ConfigurationError

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
    try:
        _serve(open_maker)
    except BaseException:  # the process ends, and nothing else prints the error
        traceback.print_exc()
        sys.stderr.flush()
        os._exit(1)
    os._exit(0)


def _serve(open_maker: Callable[[Mapping[str, Any]], tuple[TokenMaker, Mapping[str, Any]]]) -> None:
    output = os.fdopen(take_output(), "wb")

    def send(message: Mapping[str, Any]) -> None:
        output.write(json.dumps(message).encode() + b"\n")
        output.flush()

    inbox: SimpleQueue[dict[str, Any]] = SimpleQueue()
    threading.Thread(target=_listen, args=(inbox,), daemon=True).start()
    try:
        maker, facts = open_maker(inbox.get()["open"])
    except ConfigurationError as error:
        send({"refused": str(error)})
        return
    send({"ready": dict(facts)})
    while True:
        _take_in(inbox, maker, send)
        made = [list(each) for each in maker.step()]
        if made:
            send({"made": made})


def _take_in(inbox: SimpleQueue[dict[str, Any]], maker: TokenMaker, send: Callable[[Mapping[str, Any]], None]) -> None:
    """Handle all pending messages; if no sequence is unfinished, wait for a message."""
    while True:
        try:
            message = inbox.get(block=not maker.has_work)
        except Empty:
            return
        if "drop" in message:
            maker.drop(message["drop"])
            continue
        try:
            maker.begin(message["begin"], message)
        except Exception as error:  # any error of the generator ends the sequence
            send(
                {
                    "failed": message["begin"],
                    "error": f"the worker rejected the request: {type(error).__name__}: {error}",
                }
            )


def _listen(inbox: SimpleQueue[dict[str, Any]]) -> None:
    """Queue messages until the input ends, then end the process."""
    try:
        for line in sys.stdin.buffer:
            inbox.put(json.loads(line))
    finally:
        os._exit(0)


def take_output() -> int:
    """Reserve standard output for messages, and return its descriptor; prints of libraries go to standard error."""
    output = os.dup(1)
    os.dup2(2, 1)
    return output
