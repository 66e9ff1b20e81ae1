"""A worker process behind pipes: tokens are streamed, and every failure of the process is reported."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from s1_mini.exceptions import ConfigurationError, EngineNotReadyError, GenerationError
from s1_mini.remote.child import Child
from s1_mini.remote.tokens import TokenWorker
from waiting import EVENTUALLY_S, wait_until

# It counts up from the prompt's number. Some numbers trigger a fault: exit, hang, or an invalid message.
COUNTER = """
import os, sys, time
from s1_mini.exceptions import ConfigurationError
from s1_mini.remote.token_server import serve

DIES, HANGS, RAVES = 1000, 2000, 3000

class Counter:
    def __init__(self):
        self.left = {}

    has_work = property(lambda self: bool(self.left))

    def begin(self, number, asked):
        print("a library prints")
        self.left[number] = list(range(asked["prompt"][0], asked["prompt"][0] + asked["steps"]))

    def drop(self, number):
        self.left.pop(number, None)

    def step(self):
        for number, left in list(self.left.items()):
            token = left.pop(0)
            if token == DIES:
                print("out of luck", file=sys.stderr, flush=True)
                os._exit(3)
            if token == HANGS:
                time.sleep(600)
            if token == RAVES:
                os.write(output, b"Hello.\\n")
            if not left:
                del self.left[number]
            yield number, [token], not left
        time.sleep(0.002)

def open_counter(opening):
    if "refuse" in opening:
        raise ConfigurationError(opening["refuse"])
    if "fail" in opening:
        raise RuntimeError(opening["fail"])
    if "hang" in opening and not os.path.exists(opening["hang"]):
        open(opening["hang"], "w").close()
        time.sleep(600)
    return Counter(), {}

output = os.dup(1)
serve(open_counter)
"""
Start = Callable[..., TokenWorker]


@pytest.fixture
def start() -> Iterator[Start]:
    """Start workers; they are closed after the test."""
    workers: list[TokenWorker] = []

    def begin(script: str = COUNTER, start_s: float = 60.0, silent_s: float = 60.0, **opening: str) -> TokenWorker:
        command = [sys.executable, "-c", script]
        options = {"environment": os.environ, "start_s": start_s, "silent_s": silent_s}
        workers.append(TokenWorker("first", command, opening, **options))
        return workers[-1]

    yield begin
    for worker in workers:
        worker.close()


def ask(worker: TokenWorker, first: int, steps: int = 3) -> int:
    return worker.begin({"prompt": [first], "steps": steps})


def take_all(worker: TokenWorker, number: int) -> list[int]:
    """Read the tokens of a sequence to its end."""
    tokens, end = [], time.monotonic() + EVENTUALLY_S
    while time.monotonic() < end:
        (made,) = worker.take([number], 1.0)
        tokens += [] if made.token is None else [made.token]
        if made.is_last:
            return tokens
    raise AssertionError(f"it never ended; there are {tokens}")


def test_sequences_run_concurrently_and_output_printed_by_a_library_is_ignored(start: Start) -> None:
    worker = start()

    long, short = ask(worker, 10, 300), ask(worker, 50, 2)

    assert take_all(worker, short) == [50, 51]
    assert not worker.take([long], 0.0)[0].is_last
    assert take_all(worker, long)[-1] == 309


def test_a_dropped_sequence_generates_no_more_tokens(start: Start) -> None:
    worker = start()
    fatal = ask(worker, 1000 - 500, 600)  # the worker would exit
    worker.take([fatal], 30.0)

    worker.drop(fatal)

    assert take_all(worker, ask(worker, 0, 600)) == list(range(600))
    assert worker.num_starts == 1


def test_a_refused_sequence_fails_only_its_own_request(start: Start) -> None:
    worker = start()
    wrong, right = worker.begin({"prompt": [], "steps": 1}), ask(worker, 1)

    with pytest.raises(GenerationError, match="the worker rejected the request: IndexError"):
        take_all(worker, wrong)
    assert take_all(worker, right) == [1, 2, 3]


@pytest.mark.parametrize(
    ("number", "how", "silent_s"),
    [(1000, "exit code 3", 60), (2000, "no response for 0.5 s", 0.5), (3000, "Hello", 60)],
)
def test_a_worker_that_dies_hangs_or_sends_garbage_fails_its_requests_and_is_restarted(
    start: Start, number: int, how: str, silent_s: float
) -> None:
    worker = start(silent_s=silent_s)
    worker.wait_until_ready()
    both = [ask(worker, number - 1, 9), ask(worker, 0, 900)]

    for each in both:
        with pytest.raises(EngineNotReadyError, match=f"the worker of stage first exited .*{how}.*restarting"):
            take_all(worker, each)

    worker.silent_s = 60.0  # of the restarted worker, also on a machine that stalls
    assert take_all(worker, ask(worker, 5)) == [5, 6, 7]
    assert worker.num_starts == 2


def test_a_worker_that_cannot_begin_says_why(start: Start) -> None:
    with pytest.raises(ConfigurationError, match=r"^no heads of 16 channels$"):
        start(refuse="no heads of 16 channels").wait_until_ready()
    with pytest.raises(EngineNotReadyError, match=r"(?s)exit code 1\) before it was ready.*RuntimeError: the disk is"):
        start(fail="the disk is full").wait_until_ready()
    with pytest.raises(EngineNotReadyError, match=r"exited .* before it was ready"):
        start("print('Hello.')").wait_until_ready()


def test_a_start_that_times_out_is_retried_at_the_next_request(start: Start, tmp_path: Path) -> None:
    worker = start(start_s=3.0, hang=str(tmp_path / "hung"))
    waiting = ask(worker, 1)

    with pytest.raises(EngineNotReadyError, match=r"not ready after 3 s\) before it was ready"):
        worker.wait_until_ready()
    with pytest.raises(EngineNotReadyError, match="before it was ready; see the log"):
        take_all(worker, waiting)

    worker.start_s = EVENTUALLY_S
    assert take_all(worker, ask(worker, 1)) == [1, 2, 3]


def test_a_missing_interpreter_is_reported(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", "/nowhere/python")

    with pytest.raises(EngineNotReadyError, match="could not be started: /nowhere/python"):
        start().wait_until_ready()


PARENT = """
import os, sys
from s1_mini.remote.tokens import TokenWorker
worker = TokenWorker("first", [sys.executable, "-c", sys.argv[1]], {}, environment=os.environ, start_s=60, silent_s=60)
worker.wait_until_ready()
worker.begin({"prompt": [0], "steps": 10**5})
print(worker.pid, flush=True)
os._exit(1)
"""


@pytest.mark.skipif(os.name == "nt", reason="asks for a process as POSIX does")
def test_a_worker_ends_with_its_parent() -> None:
    asked = subprocess.run([sys.executable, "-c", PARENT, COUNTER], capture_output=True, text=True, check=False)
    process = int(asked.stdout)

    def has_ended() -> bool:
        try:
            os.kill(process, 0)
            return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
        except ProcessLookupError:
            return True
        except FileNotFoundError:  # no /proc here, or the process has already ended
            return False

    wait_until(has_ended)


def test_the_end_of_a_process_is_noticed_although_its_log_cannot_be_read() -> None:
    ended = threading.Event()

    class Broken(Child):
        logs = True

        def on_line(self, line: str) -> None:
            raise TypeError(line)

        def on_exit(self, exit_code: int) -> None:
            assert not exit_code
            ended.set()

    Broken([sys.executable, "-c", "print(1)"], name="broken").launch()

    assert ended.wait(EVENTUALLY_S)
