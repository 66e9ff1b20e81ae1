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
    num_shared: int = 0  # leading items that depend on the voice alone, not on the text
    prefix_key: str = ""  # equal for prompts that share those items
    facts: Mapping[str, int] = field(default_factory=dict)  # inputs of policies, such as the length of a history
    # First position of the text and the one after its last, which may follow the items; None: all items not shared.
    text: tuple[int, int] | None = None
    voice: Mapping[str, Any] = field(default_factory=dict)  # named arrays that condition the stages
