"""The engine whose stages are elsewhere: text, voices and limits are here, as with any other. Knows no Ray."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from s1_mini.config import EngineConfig
from s1_mini.engine import ProductionTTSEngine
from s1_mini.exceptions import CheckpointMismatchError
from s1_mini.families.registry import family_of
from s1_mini.remote.relay import RemoteCore
from s1_mini.remote.stage_worker import fingerprint
from s1_mini.remote.work import Call, Facts
from s1_mini.runtime.loader import Speaker, load
from s1_mini.runtime.synthesizer import Synthesizer, Works

Tell = Callable[[], Mapping[str, Any]]


class ClusterEngine(ProductionTTSEngine):
    """Speaks by stages in other processes. It has the checkpoint's tokenizer and voices, and none of its weights."""

    def __init__(
        self,
        config: EngineConfig,
        call: Call,
        facts: Sequence[Facts],
        *,
        max_open: int,
        tell: Tell = dict,
    ) -> None:
        """`call` has the last stage work, `facts` are what a replica of each says, `tell` gives how all are now."""
        super().__init__(config)
        self._call, self._facts, self._max_open, self._tell = call, facts, max_open, tell

    def _open(self, config: EngineConfig) -> tuple[Speaker, Synthesizer]:
        speaker = load(config, here=())
        return speaker, Synthesizer(speaker, config, self.metrics, open_works=self._open_works)

    def _open_works(self, speaker: Speaker, config: EngineConfig) -> Works:
        names, own = family_of(speaker.directory).stage_names, fingerprint(speaker.directory)
        for fact in self._facts:
            if fact.fingerprint != own:
                raise CheckpointMismatchError(
                    f"the stage {fact.stage} has another checkpoint than {speaker.directory} here; put the same on all "
                    "machines"
                )
        first = self._facts[0]
        chain = speaker.loaded.chain(first.slots, first.positions)
        core = RemoteCore(chain, names, self._call, config, slots=first.slots, max_open=self._max_open)
        return Works(core, chain, first.positions)

    def health_check(self) -> dict[str, Any]:
        """Tell state, placement and memory, and how many replicas each stage has."""
        return super().health_check() | {"stages": dict(self._tell())}
