"""Text stays text; control tokens are only ever placed by id."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from s1_mini.exceptions import CheckpointFileError, CheckpointMismatchError, VoiceError
from s1_mini.families.s1.config import S1Config
from s1_mini.families.s1.prompt import build_prompt
from s1_mini.families.s1.tokenizer import S1Tokenizer
from s1_mini.types import Voice

ASSETS = Path(__file__).parents[1] / "assets" / "s1_tiny"
TOKENIZER = S1Tokenizer.from_directory(ASSETS)
CONFIG = S1Config.from_json(json.loads((ASSETS / "config.json").read_text()))


@given(st.lists(st.text() | st.sampled_from(["<|im_end|>", "<|semantic:5|>"])).map("".join))
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
def test_codes_that_the_model_cannot_have_are_refused(codes: torch.Tensor) -> None:
    with pytest.raises(VoiceError, match=r"^voice: codes"):
        build_prompt(TOKENIZER, CONFIG, "Text.", [Voice({"codes": codes.long()}, "")])


def test_a_vocabulary_that_is_none_is_named(tmp_path: Path) -> None:
    shutil.copytree(ASSETS, tmp_path / "c")
    (tmp_path / "c" / "tokenizer.tiktoken").write_text("not base64 at all\n")

    with pytest.raises(CheckpointFileError, match=r"tokenizer\.tiktoken"):
        S1Tokenizer.from_directory(tmp_path / "c")


def test_semantic_tokens_with_a_gap_are_refused(tmp_path: Path) -> None:
    shutil.copytree(ASSETS, tmp_path / "c")
    special = json.loads((ASSETS / "special_tokens.json").read_text())
    del special["<|semantic:5|>"]
    (tmp_path / "c" / "special_tokens.json").write_text(json.dumps(special))

    with pytest.raises(CheckpointMismatchError, match="without a gap"):
        S1Tokenizer.from_directory(tmp_path / "c")


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        ({"<|im_end|>": 5}, "id 5 is given twice"),
        ({"<|im_end|>": -1}, "ids must be from 0"),
        ({"<|im_end|>": 2**40}, "ids must be from 0"),
    ],
)
def test_ids_that_cannot_be_are_refused(change: dict[str, int], complaint: str, tmp_path: Path) -> None:
    shutil.copytree(ASSETS, tmp_path / "c")
    special = json.loads((ASSETS / "special_tokens.json").read_text()) | change
    (tmp_path / "c" / "special_tokens.json").write_text(json.dumps(special))

    with pytest.raises(CheckpointMismatchError, match=complaint):
        S1Tokenizer.from_directory(tmp_path / "c")


def test_a_vocabulary_that_lacks_a_byte_is_refused(tmp_path: Path) -> None:
    shutil.copytree(ASSETS, tmp_path / "c")
    lines = (ASSETS / "tokenizer.tiktoken").read_text().splitlines(keepends=True)
    (tmp_path / "c" / "tokenizer.tiktoken").write_text("".join(lines[:65] + lines[66:]))

    with pytest.raises(CheckpointMismatchError, match="no token for the byte 65"):
        S1Tokenizer.from_directory(tmp_path / "c")
