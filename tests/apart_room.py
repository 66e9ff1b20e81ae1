"""Stages apart in one process: what Ray Serve does between processes, without it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from leaks import leaks
from s1_mini import EngineConfig
from s1_mini.families.registry import family_of
from s1_mini.remote.relay import ClusterEngine
from s1_mini.remote.stage_worker import StageEngine
from s1_mini.remote.work import Call
from waiting import wait_until

Wrap = Callable[[str, Call], Call]  # a stage's name and what has it work: gives what stands before it


class Apart:
    """An engine, and its stages behind it."""

    def __init__(self, engine: ClusterEngine, stages: list[StageEngine]) -> None:
        self.engine, self.stages = engine, stages

    def wait_until_idle(self) -> None:
        """Wait until no stage has anything in hand, nor holds anything for nobody."""

        def left() -> list[str]:
            left = [f"requests of {each.facts.stage}" for each in self.stages if each.core.num_requests]
            left += [told for each in self.stages for told in leaks(each.core.scheduler)]
            told = self.engine.health_check()
            is_busy = told["requests"] or told["slots"]["free"] < told["slots"]["total"]
            return left + (["requests"] if is_busy else [])

        wait_until(lambda: not left())


@contextmanager
def apart(checkpoint: Path, wrap: Wrap = lambda _, call: call, **settings: object) -> Iterator[Apart]:
    """Start an engine whose stages are apart."""
    config = EngineConfig(checkpoint_path=checkpoint, device="cpu", **settings)
    call, stages = None, []
    with ExitStack() as stack:
        for name in family_of(checkpoint).stage_names:
            stages.append(StageEngine(config, name, call))
            stack.callback(stages[-1].close)
            call = wrap(name, stages[-1].speak)
        assert call is not None
        engine = ClusterEngine(config, call, [stage.facts for stage in stages], max_open=16)
        yield Apart(stack.enter_context(engine), stages)
