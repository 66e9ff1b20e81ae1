"""The prompt that a family builds from a sentence piece and a voice."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np


@dataclass(frozen=True)
class PromptTokens:
    """The input of the first stage for one utterance."""

    items: np.ndarray  # [S, *shape] of the first stage's input
    num_shared: int = 0  # number of leading items that depend only on the voice, not on the text
    prefix_key: str = ""  # the same for all prompts with the same leading items
    facts: Mapping[str, int] = field(default_factory=dict)  # numbers for stage policies, such as a history's length
    # First position of the text and the position after its last token, which may lie behind the items; None if the text
    # is all items that are not shared.
    text: tuple[int, int] | None = None
    voice: Mapping[str, Any] = field(default_factory=dict)  # named arrays that condition the stages
    lengths: Mapping[str, int] = field(default_factory=dict)  # number of items from each field of the request

    @property
    def num_after(self) -> int:
        """Number of text tokens that follow the items; each is read by a step."""
        return 0 if self.text is None else max(0, self.text[1] - len(self.items))

    def excess(self, limit: str) -> str:
        """Return the message for a prompt that is too long. The message begins with the field of the longest part."""
        longest = max(self.lengths, key=lambda name: self.lengths[name], default="text")
        listed = ", ".join(f"{name} {length}" for name, length in self.lengths.items() if length)
        parts = f" ({listed})" if listed else ""
        return f"{longest}: the prompt takes {len(self.items)} positions{parts}, but {limit}; shorten {longest}"
