"""The supervisor takes only a replica that does not answer for hanging, and asks the replicas once for everyone."""

from __future__ import annotations

import asyncio
import itertools
import socket
import sys
import threading
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx2
import pytest

from s1_mini.remote import child as child_module
from s1_mini.remote import replica as replica_module
from s1_mini.remote.child import Supervised
from s1_mini.remote.replica import Replica
from s1_mini.remote.supervisor import AdminRoutes
from s1_mini.server.member import ReplicaInfo
from s1_mini.server.settings import ServerSettings
from waiting import EVENTUALLY_S

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="replicas need Unix sockets")

READY = b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n"


@pytest.fixture
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("r")  # short, because the length of a socket's path is limited


@pytest.fixture
def replica(folder: Path) -> Replica:
    async def admit(_: Replica) -> bool:
        return True

    async def end(_: Replica, __: int | None) -> None:
        pass

    return Replica(ReplicaInfo(0, 1, folder / "0", keeps_voices=False), [], {}, admit, end)


@pytest.fixture
def listener(folder: Path) -> Iterator[socket.socket]:
    """The socket of the replica, which accepts connections."""
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(folder / "0"))
        listener.listen()
        yield listener


class LeapingLoop(asyncio.SelectorEventLoop):
    """An event loop that is an hour late at each look at the clock."""

    def __init__(self) -> None:
        super().__init__()
        self._looks = itertools.count()

    def time(self) -> float:
        return 3600.0 * next(self._looks)


def test_a_replica_that_answers_is_heard_however_late_the_supervisor_is(
    replica: Replica, listener: socket.socket
) -> None:
    listener.settimeout(EVENTUALLY_S)

    def answer() -> None:
        with suppress(TimeoutError), listener.accept()[0] as plug:
            plug.recv(4096)
            plug.sendall(READY)

    answering = threading.Thread(target=answer)
    answering.start()
    replica.heard = float("-inf")
    with asyncio.Runner(loop_factory=LeapingLoop) as runner:
        runner.run(replica.check_health())
    answering.join()

    assert replica.heard > 0
    assert replica.is_ready


@pytest.mark.usefixtures("listener")
def test_a_replica_that_accepts_connections_without_answering_is_silent(
    replica: Replica, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(replica_module, "SILENT_S", 0.05)
    replica.heard = float("-inf")
    asyncio.run(replica.check_health())

    assert replica.heard == float("-inf")


def test_the_time_by_which_the_supervisor_is_late_is_not_the_childs_silence(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 0.0
    monkeypatch.setattr(child_module, "time", SimpleNamespace(monotonic=lambda: now))

    class Child(Supervised):
        starting_s = 0.0
        owes_answer = True
        num_checks = 0

        async def check_health(self) -> None:
            def fall_behind() -> None:
                nonlocal now
                now += 100.0

            asyncio.get_running_loop().call_soon(fall_behind)
            self.num_checks += 1
            if self.num_checks >= 3:
                self.is_ending = True
                self.end(15)

    program = "import time; time.sleep(600)"
    child = Child([sys.executable, "-c", program], None, name="test", start_s=float("inf"), silent_s=15)
    asyncio.run(child.keep())

    assert child.num_checks >= 3
    assert child.verdict == ""


def test_an_error_of_a_health_check_reaches_the_supervisor() -> None:
    class Broken(Supervised):
        async def check_health(self) -> None:
            raise ConnectionError("the proxy is down")

    child = Broken([sys.executable, "-c", "import time; time.sleep(600)"], None, name="test", start_s=60, silent_s=60)
    with pytest.raises(ConnectionError):
        asyncio.run(child.keep())
    child.kill()


class Answering:
    """A replica that counts what it is asked, and answers when it may."""

    member = SimpleNamespace(name="0")
    is_ready, num_starts = True, 1

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.may_answer = asyncio.Event()

    def health(self) -> dict[str, Any]:
        return {"replica": "0"}

    async def request(self, target: str, **_: Any) -> Any:
        self.asked.append(target)
        await self.may_answer.wait()
        text = '{"ready": true, "requests": 1}' if target == "/health" else "a_total 1.0\n"
        return SimpleNamespace(status_code=200, text=text, content=text.encode())


@pytest.mark.parametrize("path", ["/health", "/metrics"])
def test_all_who_ask_at_the_same_time_share_one_collection(path: str) -> None:
    async def ask() -> tuple[list[httpx2.Response], list[str]]:
        replica = Answering()
        routes = AdminRoutes([replica], ServerSettings(), lambda: False)  # type: ignore[list-item]
        async with httpx2.AsyncClient(transport=httpx2.ASGITransport(routes.app), base_url="http://localhost") as http:
            asking = [asyncio.ensure_future(http.get(path)) for _ in range(30)]
            impatient = asyncio.ensure_future(http.get(path))
            while not replica.asked:
                await asyncio.sleep(0)
            impatient.cancel()
            with suppress(asyncio.CancelledError):
                await impatient
            replica.may_answer.set()
            return list(await asyncio.gather(*asking)), replica.asked

    answers, asked = asyncio.run(ask())

    assert asked == [path]
    assert {(answer.status_code, answer.content) for answer in answers} == {(200, answers[0].content)}
    assert len(answers[0].content) > 10
