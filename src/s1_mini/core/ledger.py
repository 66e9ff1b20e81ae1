"""The open requests of an engine, and their metrics. Each request ends exactly once."""

from __future__ import annotations

from s1_mini.core.request import Request
from s1_mini.exceptions import S1MiniError
from s1_mini.metrics import EngineMetrics


class RequestTracker:
    """The open requests of one engine, by number. All times are in seconds, from the same monotonic clock."""

    def __init__(self) -> None:
        self.metrics = EngineMetrics()
        self.requests: dict[int, Request] = {}

    def __len__(self) -> int:
        return len(self.requests)

    def all(self) -> list[Request]:
        return list(self.requests.values())

    def late(self, now: float) -> list[Request]:
        """Return the requests past their deadline.

        A stream that is paused because its consumer reads too slowly is never late; its time limit begins again.
        """
        late = [request for request in self.all() if now > request.deadline]
        for request in late:
            if request.update_pause():
                request.deadline = now + request.allowed_s
        return [request for request in late if now > request.deadline]

    def add(self, request: Request) -> None:
        self.requests[request.number] = request

    def count_admitted(self, request: Request, now: float) -> None:
        if request.admitted is None:
            request.admitted = now
            self.metrics.queue_s.observe(now - request.arrived)

    def count_begun(self, request: Request, slot: int | None, now: float) -> None:
        if request.begun is None and request.admitted is not None:
            request.begun, request.slot = now, slot
            self.metrics.prefill_s.observe(now - request.admitted)

    def end(self, request: Request, error: S1MiniError | None, reason: str, now: float, num_items: int) -> None:
        """Record the end of a request, which has generated `num_items` items, and notify its consumer."""
        metrics, speech, took = self.metrics, request.speech, now - request.arrived
        metrics.ends[error.code if error else reason] += 1
        metrics.total_s.observe(took)
        metrics.audio_s += speech.sent_s
        metrics.underruns += speech.underruns
        if speech.first_sent is not None:
            metrics.first_chunk_s.observe(speech.first_sent - request.arrived)
        if speech.sent_s:
            metrics.real_time_factor.observe(took / speech.sent_s)
        self.tell_end(request, error, now, request.finish_reason if reason == "spoken" else reason, num_items)

    def tell_end(
        self, request: Request, error: BaseException | None, now: float, reason: str = "", num_items: int = 0
    ) -> None:
        """Notify the consumer without recording metrics; does nothing if another thread has just notified it."""
        if self.requests.pop(request.number, None) is not None:
            try:
                if request.on_end is not None:
                    end = reason if error is None else getattr(error, "code", type(error).__name__)
                    request.phases(end, now, num_items).tell(request.on_end)
            finally:
                request.speech.queue.end(error)
