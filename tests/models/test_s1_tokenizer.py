"""Text stays text; control tokens are only ever placed by id."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from s1_mini.exceptions import CheckpointFileError, CheckpointMismatchError, RequestError
from s1_mini.models.s1.prompt import build_prompt
from s1_mini.models.s1.tokenizer import S1Tokenizer
from s1_mini.types import Voice

ASSETS = Path(__file__).parents[1] / "assets" / "s1_tiny"
TOKENIZER = S1Tokenizer.from_directory(ASSETS)


@given(st.lists(st.text() | st.sampled_from(["<|im_end|>", "<|semantic:5|>"])).map("".join))
def test_no_text_ever_encodes_to_a_control_token(text: str) -> None:
    tokens = TOKENIZER.encode(text)

    assert not set(tokens) & set(TOKENIZER.special_tokens.values())
    assert TOKENIZER.decode(tokens) == text


def test_a_control_token_spelled_in_a_text_does_not_end_the_prompt() -> None:
    prompt = build_prompt(TOKENIZER, 10, "Say <|im_end|> please.", [])

    assert TOKENIZER.control("im_end") not in prompt.columns[0].tolist()


def test_the_prompt_shares_its_voice_and_not_its_text() -> None:
    voice = Voice(torch.randint(0, 32, (10, 6)), "Hello reference.")

    first, second = (build_prompt(TOKENIZER, 10, text, [voice]) for text in ("One.", "Two."))

    assert first.num_shared == second.num_shared
    assert torch.equal(first.columns[:, : first.num_shared], second.columns[:, : second.num_shared])
    assert TOKENIZER.decode(first.columns[0, first.num_shared :].tolist()) == "One."


@pytest.mark.parametrize(
    "codes", [torch.zeros(9, 4), torch.zeros(10, 0), torch.full((10, 4), 64), torch.full((10, 4), -1)]
)
def test_codes_that_the_model_cannot_have_are_refused(codes: torch.Tensor) -> None:
    with pytest.raises(RequestError, match=r"^voice: codes"):
        build_prompt(TOKENIZER, 10, "Text.", [Voice(codes.long(), "")])


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
