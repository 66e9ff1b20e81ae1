"""An utterance whose text is still being written: its prompt, then the text tokens of its steps."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from s1_mini.core.prompt import PromptTokens
from s1_mini.core.request import Utterance
from s1_mini.core.scheduler import Scheduler
from s1_mini.exceptions import TextError
from s1_mini.families.base import PromptOptions, TextStreamModel
from s1_mini.runtime.runner import as_error, attempt
from s1_mini.text.arriving import ArrivingText
from s1_mini.types import Voice


class ArrivingUtterance:
    """Passes a text to the scheduler as it arrives. An error in the text ends the request."""

    def __init__(
        self,
        utterance: Utterance,
        text: ArrivingText,
        scheduler: Scheduler,
        model: TextStreamModel,
        *,
        voices: Sequence[Voice],
        options: PromptOptions,
        room: Callable[[PromptTokens], int],
    ) -> None:
        """`room` returns the steps that fit after a prompt, or raises `CapacityError`."""
        self._utterance, self._text, self._scheduler, self._model = utterance, text, scheduler, model
        self._voices, self._options, self._room = voices, options, room
        self._beginning: str | None = ""  # text so far; None once it is in the prompt
        self._num_left = 0  # text tokens that still fit

    def take(self, piece: str, is_last: bool) -> None:
        """Take the next piece of the text; one thread at a time."""
        if not self._utterance.request.has_ended:
            attempt(
                lambda: self._read(self._text.add(piece, is_last=is_last), is_last=is_last),
                lambda error: self._scheduler.end(self._utterance.request, as_error(error)),
            )

    def _read(self, text: str, *, is_last: bool) -> None:
        if self._beginning is not None:
            self._begin(self._beginning + text, is_last=is_last)
        elif text or is_last:
            self._feed(self._model.rest_of_text(text, is_last=is_last), is_last=is_last)

    def _begin(self, text: str, *, is_last: bool) -> None:
        if text == self._beginning and not is_last:
            return  # it was too short already
        self._beginning = text
        prompt = self._model.begin_text(text, self._voices, self._options, is_last=is_last) if text else None
        if prompt is not None:
            self._beginning = None
            room = self._room(prompt)
            check_rest(prompt.num_after, room)
            self._num_left = room - prompt.num_after
            max_steps = min(self._utterance.request.sampling.max_new_tokens, room)
            self._scheduler.open_stream(self._utterance, prompt, max_steps)
            self._feed(np.zeros(0, np.int64), is_last=is_last)

    def _feed(self, tokens: np.ndarray, *, is_last: bool) -> None:
        check_rest(len(tokens), self._num_left)
        self._num_left -= len(tokens)
        self._scheduler.feed(self._utterance, tokens, is_last=is_last)


def check_rest(num_tokens: int, room: int) -> None:
    """Raise `TextError` unless the `room` of a slot has a step for each text token after the prompt."""
    if num_tokens > room:
        raise TextError(
            "text",
            f"does not fit in a slot: it is {num_tokens - room} tokens too long, because each needs a frame; "
            "shorten it or raise S1_MINI_MAX_COLUMNS",
        )
