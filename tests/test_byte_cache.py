"""The cache stays within its byte limit, evicts the least recently used entry."""

from __future__ import annotations

import sys
import tracemalloc
from types import FrameType
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from s1_mini.byte_cache import ByteCache


def cache_of(*keys: str, max_bytes: int = 100, size: int = 30) -> ByteCache[str]:
    cache: ByteCache[str] = ByteCache(max_bytes)
    for key in keys:
        assert cache.put(key, key.upper(), size)
    return cache


def test_the_least_recently_used_goes_first() -> None:
    cache = cache_of("a", "b", "c")
    cache.get("a")

    cache.put("d", "D", 30)

    assert [key for key in "abcd" if key in cache] == ["a", "c", "d"]
    assert cache.stats.evictions == 1


def test_entries_may_be_bounded_too() -> None:
    cache: ByteCache[str] = ByteCache(100, max_entries=2)
    for key in "abc":
        assert cache.put(key, key, 1)

    assert [key for key in "abc" if key in cache] == ["b", "c"]
    assert not ByteCache(100, max_entries=0).put("a", "a", 1)


def test_a_new_value_replaces_the_old_with_its_bytes() -> None:
    cache = cache_of("a")

    cache.put("a", "other", 10)

    assert cache.get("a") == "other"
    assert cache.stats.num_bytes == 10


def test_shrinking_evicts_all_entries() -> None:
    cache = cache_of("a", "b", "c")

    assert cache.shrink() == 90
    assert [key for key in "abc" if key in cache] == []


def test_an_entry_that_is_too_large_is_refused() -> None:
    cache = cache_of("a")

    assert not cache.put("big", "BIG", 101)
    assert [key for key in ("a", "big") if key in cache] == ["a"]


def test_hits_and_misses_are_counted() -> None:
    cache = cache_of("a")
    cache.get("a")
    cache.get("b")

    assert (cache.stats.hits, cache.stats.misses) == (1, 1)


@given(st.lists(st.tuples(st.sampled_from("abcdef"), st.integers(0, 120)), max_size=40))
def test_bytes_are_never_more_than_allowed(steps: list[tuple[str, int]]) -> None:
    cache: ByteCache[int] = ByteCache(100)
    for key, size in steps:
        cache.put(key, size, size)

        stats = cache.stats
        assert stats.num_bytes <= 100
        assert stats.num_bytes == sum(cache.get(k) or 0 for k in "abcdef" if k in cache)


def test_putting_an_entry_costs_the_same_however_many_there_are() -> None:
    small, large = (put_cost(entries) for entries in (100, 20_000))

    assert large == small


def put_cost(entries: int) -> tuple[int, int]:
    """Count the bytecode instructions and the kilobytes of temporary memory of one `put` that evicts an entry."""
    cache: ByteCache[int] = ByteCache(entries)
    for number in range(entries):
        cache.put(str(number), number, 1)
    instructions = 0

    def count(frame: FrameType, event: str, _: object) -> Any:
        nonlocal instructions
        frame.f_trace_opcodes = True
        instructions += event == "opcode"
        return count

    before = sys.gettrace()
    sys.settrace(count)
    try:
        cache.put("new", 0, 1)
    finally:
        sys.settrace(before)
    peaks = []
    for key in ("newer", "newest", "last"):  # one of them may resize a dictionary
        tracemalloc.start()
        try:
            cache.put(key, 0, 1)
            peaks.append(tracemalloc.get_traced_memory()[1])
        finally:
            tracemalloc.stop()
    assert cache.stats.evictions == 4
    return instructions, min(peaks) // 1000
