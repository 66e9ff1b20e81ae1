"""Options shared by several benchmarks."""

import argparse

import pytest

from benchmark.command import names


def test_names_come_in_one_order_and_an_unknown_one_is_told_with_those_that_are_known() -> None:
    read = names(["one", "two", "three"])

    assert read("three,one") == ("one", "three")
    with pytest.raises(argparse.ArgumentTypeError, match="'four' is not one of one, two, three"):
        read("one,four")
