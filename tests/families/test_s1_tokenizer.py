"""Text is never encoded to control tokens; those are only placed by id."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from s1_mini.exceptions import CheckpointFileError, CheckpointMismatchError, VoiceError
from s1_mini.families.s1.config import S1Config
from s1_mini.families.s1.prompt import build_prompt
from s1_mini.families.s1.tokenizer import S1Tokenizer
from s1_mini.types import Voice

ASSETS = Path(__file__).parents[1] / "assets" / "s1_tiny"
TOKENIZER = S1Tokenizer.from_directory(ASSETS)
CONFIG = S1Config.from_json(json.loads((ASSETS / "config.json").read_text()))


TEXT = st.text(st.characters(exclude_categories=["Cs"]))


@settings(max_examples=30)
@given(st.lists(TEXT | st.sampled_from(["<|im_end|>", "<|semantic:5|>"])).map("".join))
def test_no_text_ever_encodes_to_a_control_token(text: str) -> None:
    tokens = TOKENIZER.encode(text)

    assert not set(tokens) & set(TOKENIZER.special_tokens.values())
    assert TOKENIZER.decode(tokens) == text


def test_a_control_token_spelled_in_a_text_does_not_end_the_prompt() -> None:
    prompt = build_prompt(TOKENIZER, CONFIG, "Say <|im_end|> please.", [])

    assert TOKENIZER.control("im_end") not in prompt.items[:, 0].tolist()


def test_the_prompt_shares_its_voice_and_not_its_text() -> None:
    voice = Voice({"codes": torch.randint(0, 32, (10, 6))}, "Hello reference.")

    first, second = (build_prompt(TOKENIZER, CONFIG, text, [voice]) for text in ("One.", "Two."))

    assert first.num_shared == second.num_shared
    assert np.array_equal(first.items[: first.num_shared], second.items[: second.num_shared])
    assert TOKENIZER.decode(first.items[first.num_shared :, 0].tolist()) == "One."


@pytest.mark.parametrize(
    "codes",
    [
        torch.zeros(9, 4),
        torch.zeros(10, 0),
        torch.full((10, 4), 64),
        torch.full((10, 4), -1),
        torch.cat((torch.zeros(9, 4), torch.full((1, 4), 64))),
    ],
)
def test_codes_out_of_the_models_range_are_refused(codes: torch.Tensor) -> None:
    with pytest.raises(VoiceError, match=r"^voice: has codes "):
        build_prompt(TOKENIZER, CONFIG, "Text.", [Voice({"codes": codes.long()}, "")])


def special_tokens(**changed: int | None) -> str:
    """The control tokens, some with another id, or one missing."""
    special = json.loads((ASSETS / "special_tokens.json").read_text())
    special |= {f"<|{name}|>": value for name, value in changed.items()}
    return json.dumps({name: value for name, value in special.items() if value is not None})


LINES = (ASSETS / "tokenizer.tiktoken").read_text().splitlines(keepends=True)


@pytest.mark.parametrize(
    ("file", "content", "error", "complaint"),
    [
        ("tokenizer.tiktoken", "not base64 at all\n", CheckpointFileError, r"tokenizer\.tiktoken"),
        ("tokenizer.tiktoken", "".join(LINES[:65] + LINES[66:]), CheckpointMismatchError, "no token for the byte 65"),
        ("special_tokens.json", special_tokens(**{"semantic:5": None}), CheckpointMismatchError, "without gaps"),
        ("special_tokens.json", special_tokens(im_end=5), CheckpointMismatchError, "id 5 occurs twice"),
        ("special_tokens.json", special_tokens(im_end=-1), CheckpointMismatchError, "ids must be from 0"),
        ("special_tokens.json", special_tokens(im_end=2**40), CheckpointMismatchError, "ids must be from 0"),
    ],
)
def test_an_invalid_vocabulary_is_refused(
    file: str, content: str, error: type[Exception], complaint: str, tmp_path: Path
) -> None:
    shutil.copytree(ASSETS, tmp_path / "c")
    (tmp_path / "c" / file).write_text(content)

    with pytest.raises(error, match=complaint):
        S1Tokenizer.from_directory(tmp_path / "c")
