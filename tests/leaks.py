"""Resources that a scheduler still holds when no request is open; there should be none."""

from __future__ import annotations

from s1_mini.core.scheduler import Scheduler


def leaks(scheduler: Scheduler) -> list[str]:
    """Return a description of every slot, sequence and utterance that is held without a request."""
    found = []
    with scheduler._lock:
        if scheduler.ledger or any(queue.in_flight for queue in scheduler.stages):
            return found
        for queue in scheduler.stages:
            if queue.slots.num_free != queue.slots.count:
                found.append(f"{queue.slots.count - queue.slots.num_free} slots of the stage {queue.policy.name}")
            if queue.ready or queue.in_prefill or queue.running:
                found.append(f"sequences of the stage {queue.policy.name}")
        if not scheduler.line.is_empty:
            found.append("waiting utterances")
    return found
