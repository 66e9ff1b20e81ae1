"""Options shared by several benchmarks."""

import argparse

import pytest

from benchmark.command import names


def test_names_have_a_fixed_order_and_an_unknown_one_is_reported_with_the_known_ones() -> None:
    read = names(["one", "two", "three"])

    assert read("three,one") == ("one", "three")
    with pytest.raises(argparse.ArgumentTypeError, match="one or more of one, two, three, not 'four'"):
        read("one,four")
