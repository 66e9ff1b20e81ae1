"""A text passes its pieces to an engine in order, and no writer waits while another thread passes them on."""

from __future__ import annotations

import threading

from s1_mini import TextStream
from waiting import EVENTUALLY_S


def test_a_piece_that_is_written_while_another_thread_passes_text_on_is_passed_on_by_that_thread() -> None:
    text, passes, may_go_on = TextStream(), threading.Event(), threading.Event()
    received: list[tuple[str, bool, threading.Thread]] = []

    def sink(piece: str, is_last: bool) -> None:
        received.append((piece, is_last, threading.current_thread()))
        passes.set()
        assert may_go_on.wait(EVENTUALLY_S)

    text.write("one")
    attaching = threading.Thread(target=text.attach, args=(sink,))
    attaching.start()
    assert passes.wait(EVENTUALLY_S)
    text.write(" two")  # returns although the sink has not
    text.close()
    may_go_on.set()
    attaching.join()

    assert received == [("one", False, attaching), (" two", True, attaching)]
