"""The worker's side of the pipes of `token_worker.py`, which describes the messages.

It runs in an environment of its own, which may have other versions of everything: it imports as little as it can.
"""

from __future__ import annotations

import json
import os
import sys
import threading
import traceback
from collections.abc import Callable, Iterable, Mapping
from queue import Empty, SimpleQueue
from typing import Any, BinaryIO, Protocol

from s1_mini.exceptions import ConfigurationError

Begun = tuple[int, list[int], bool]  # a sequence's number, its new tokens, and whether that was all


class TokenMaker(Protocol):
    """What makes the tokens of many sequences, a step of all at a time."""

    @property
    def has_work(self) -> bool:
        """Whether a step would make anything."""

    def begin(self, number: int, asked: Mapping[str, Any]) -> None:
        """Take a sequence in. Raises whatever is wrong with it alone."""

    def drop(self, number: int) -> None:
        """Make a sequence no further; does nothing if it is over."""

    def step(self) -> Iterable[Begun]:
        """Make a step of all sequences; give what came of it."""


def serve(open_maker: Callable[[Mapping[str, Any]], tuple[TokenMaker, Mapping[str, Any]]]) -> None:
    """Make tokens until the input ends. `open_maker` gives the maker, and what is told of it once it is ready.

    Never returns: libraries with threads of their own take their time at a proper exit, and nobody waits for it.
    """
    try:
        _serve(open_maker)
    except BaseException:
        traceback.print_exc()
        sys.stderr.flush()
        os._exit(1)
    os._exit(0)


def _serve(open_maker: Callable[[Mapping[str, Any]], tuple[TokenMaker, Mapping[str, Any]]]) -> None:
    output = _take_output()

    def say(message: Mapping[str, Any]) -> None:
        output.write(json.dumps(message).encode() + b"\n")
        output.flush()

    inbox: SimpleQueue[dict[str, Any]] = SimpleQueue()
    threading.Thread(target=_listen, args=(inbox,), daemon=True).start()
    try:
        maker, facts = open_maker(inbox.get()["open"])
    except ConfigurationError as error:
        say({"refused": str(error)})
        return
    say({"ready": dict(facts)})
    while True:
        _take_in(inbox, maker, say)
        made = [list(each) for each in maker.step()]
        if made:
            say({"made": made})


def _take_in(inbox: SimpleQueue[dict[str, Any]], maker: TokenMaker, say: Callable[[Mapping[str, Any]], None]) -> None:
    """Take in all messages that are there; without work wait for one."""
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
        except Exception as error:
            say({"failed": message["begin"], "error": f"the worker refused this: {type(error).__name__}: {error}"})


def _listen(inbox: SimpleQueue[dict[str, Any]]) -> None:
    """Take messages until the input ends: then whoever asked is gone, and so is all reason to go on."""
    try:
        for line in sys.stdin.buffer:
            inbox.put(json.loads(line))
    finally:
        os._exit(0)


def _take_output() -> BinaryIO:
    """Keep standard output for messages: what others print goes to standard error from now on."""
    output = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    return output
