"""Process settings of a busy engine: a short thread switch interval, and no full garbage collection during requests."""

from __future__ import annotations

import asyncio
import gc
import sys
from collections import Counter
from dataclasses import replace

import pytest

from s1_mini import ProductionTTSEngine
from s1_mini.runtime.process import IDLE_S, SWITCH_S, IdleCollector, freeze_what_is_loaded, frozen, prepare_process
from s1_mini.types import TTSRequest
from waiting import wait_until


def test_a_prepared_process_lets_threads_take_turns_often() -> None:
    before = sys.getswitchinterval()
    try:
        prepare_process()
        assert sys.getswitchinterval() == pytest.approx(SWITCH_S)
    finally:
        sys.setswitchinterval(before)


def test_loaded_objects_are_frozen_within_the_block_only() -> None:
    loaded = [[number] for number in range(1000)]
    with frozen():
        assert gc.get_freeze_count() > len(loaded)
        assert not any(each is loaded for each in gc.get_objects())
    assert gc.get_freeze_count() == 0
    assert any(each is loaded for each in gc.get_objects())


async def hear(engine: ProductionTTSEngine, request: TTSRequest) -> None:
    async for _ in engine.submit(request):
        pass


async def speak_all(engine: ProductionTTSEngine, number: int) -> None:
    """Send one request of each kind: one that ends, one that is cancelled, one with an error, and one with markup."""
    request = TTSRequest.of("Hi there.", seed=number, max_new_tokens=3)
    await hear(engine, request)
    stream = engine.submit(TTSRequest.of("Hi there. " * 20, seed=number, max_new_tokens=8))
    await anext(stream)
    await stream.aclose()
    with pytest.raises(Exception, match="nobody"):
        await hear(engine, replace(request, voice="nobody"))
    await hear(engine, replace(request, text='<speak>Hi <break time="0.1s"/> you.</speak>', text_type="ssml"))


def test_requests_leave_no_objects_that_only_a_collection_can_free(engine: ProductionTTSEngine) -> None:
    async def speak() -> None:
        await speak_all(engine, 0)  # fills caches
        gc.collect()
        gc.disable()
        try:
            for number in range(3):
                await speak_all(engine, number)
        finally:
            gc.enable()

    asyncio.run(speak())
    wait_until(lambda: engine.health_check()["requests"] == 0)
    gc.set_debug(gc.DEBUG_SAVEALL)
    try:
        gc.collect()
        left = Counter(type(each).__qualname__ for each in gc.garbage if type(each).__module__.startswith("s1_mini"))
    finally:
        gc.set_debug(0)
        gc.garbage.clear()
    assert not left


@pytest.mark.parametrize("is_controlled", [False, True])
def test_full_collections_run_only_while_the_engine_is_idle(
    engine: ProductionTTSEngine, *, is_controlled: bool
) -> None:
    collector, full = IdleCollector(), []
    thresholds = gc.get_threshold()

    def count(phase: str, info: dict[str, int]) -> None:
        if phase == "start" and info["generation"] == 2:
            full.append(info)

    async def speak() -> None:
        for number in range(3):
            await speak_all(engine, number)

    if sys.version_info >= (3, 14) and not is_controlled:
        pytest.skip("automatic collections of Python 3.14 are never full")
    freeze_what_is_loaded()
    gc.collect()  # few objects are left, so that a few new ones cause a full collection
    gc.set_threshold(100, 1, 1)
    try:
        if is_controlled:
            collector.start()
        gc.callbacks.append(count)
        asyncio.run(speak())
        assert bool(full) is not is_controlled
        if is_controlled:
            for is_idle, now, expected in ((False, 0.0, 0), (True, IDLE_S / 2, 0), (True, IDLE_S, 1), (True, 9.0, 1)):
                collector.look(is_idle=is_idle, now=now)
                assert len(full) == expected
    finally:
        gc.callbacks.remove(count)
        gc.set_threshold(*thresholds)
        gc.unfreeze()
