"""Number and placement of replicas, and errors before anything starts. No replica is started here."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path

import pytest

from replica_room import needs_proxy
from s1_mini import EngineConfig
from s1_mini.exceptions import ConfigurationError
from s1_mini.remote.devices import LocalMachine, assign_device, count_replicas
from s1_mini.remote.proxy import ADDRESSES, STATES, describe_proxy, find_proxy
from s1_mini.server.member import ReplicaInfo, trusted_peers
from s1_mini.server.settings import ServerSettings
from tests.cli.conftest import Call
from tests.cli.conftest import call as call  # noqa: PLC0414 - a fixture of these tests, too

GPUS = LocalMachine(num_gpus=4, num_cores=32, free_bytes=200e9)
CORES = LocalMachine(num_gpus=0, num_cores=2, free_bytes=4e9)


@pytest.mark.parametrize(
    ("wanted", "device", "machine", "count"),
    [
        ("auto", "auto", GPUS, 4),
        ("auto", "cuda", GPUS, 4),
        ("auto", "cuda:1", GPUS, 1),
        ("auto", "cpu", GPUS, 1),
        ("auto", "auto", CORES, 1),
        ("auto", "auto", LocalMachine(4, 32, 200e9, is_windows=True), 1),
        (1, "auto", GPUS, 1),
        (3, "auto", GPUS, 3),
        (2, "cpu", CORES, 2),
        (3, "cpu", CORES, 3),
    ],
)
def test_there_is_one_replica_for_each_gpu_or_the_requested_number(
    wanted: int, device: str, machine: LocalMachine, count: int
) -> None:
    assert count_replicas(wanted, EngineConfig(device=device), machine, 40_000_000) == count


@pytest.mark.parametrize(
    ("wanted", "device", "machine", "checkpoint", "sentence"),
    [
        (
            5,
            "auto",
            GPUS,
            4e7,
            "replicas=5: each replica needs its own GPU, but this machine has 4 GPUs; replicas=auto starts "
            "one replica for each GPU",
        ),
        (
            2,
            "auto",
            LocalMachine(1, 8, 9e9),
            4e7,
            "replicas=2: each replica needs its own GPU, but this machine has 1 GPU;",
        ),
        (2, "cuda:1", GPUS, 4e7, "replicas=2: device=cuda:1 is a single device; use auto, cuda or cpu"),
        (
            2,
            "auto",
            CORES,
            2e9,
            "replicas=2: each replica needs about 4.5 GB of memory, but only 4.0 GB are free; replicas that fit: 0",
        ),
        (
            2,
            "auto",
            LocalMachine(4, 32, 9e9, is_windows=True),
            4e7,
            "replicas=2: several replicas require Linux or macOS;",
        ),
    ],
)
def test_replicas_that_do_not_fit_are_reported(
    wanted: int, device: str, machine: LocalMachine, checkpoint: float, sentence: str
) -> None:
    with pytest.raises(ConfigurationError) as told:
        count_replicas(wanted, EngineConfig(device=device), machine, int(checkpoint))

    assert str(told.value).startswith(sentence)


def test_more_replicas_than_cores_get_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    count_replicas(3, EngineConfig(device="cpu"), CORES, 40_000_000)

    assert caplog.messages == ["replicas=3: only 2 cores are available; more replicas than cores are slower"]


def test_each_replica_sees_its_own_gpu_only_or_its_share_of_the_cores() -> None:
    assert [assign_device(index, 2, GPUS, {})["CUDA_VISIBLE_DEVICES"] for index in (0, 1)] == ["0", "1"]
    assert assign_device(1, 2, GPUS, {"CUDA_VISIBLE_DEVICES": "GPU-a, GPU-b"}) == {"CUDA_VISIBLE_DEVICES": "GPU-b"}
    assert assign_device(1, 2, LocalMachine(0, 8, 9e9), {}) == {"OMP_NUM_THREADS": "4"}
    assert assign_device(1, 2, CORES, {"OMP_NUM_THREADS": "1"}) == {}


@pytest.mark.parametrize("given", ["0", "-1", "65", "many", "2.5", ""])
def test_an_invalid_number_of_replicas_is_named(given: str) -> None:
    with pytest.raises(ConfigurationError, match="S1_MINI_SERVER_REPLICAS"):
        ServerSettings(replicas=given)


def test_the_proxy_is_found_on_the_path_first_and_its_installation_is_explained(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("s1_mini.remote.proxy.find_spec", lambda _: None)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(ConfigurationError, match=r'pip install "s1-mini\[replicas\]"'):
        find_proxy()

    binary = tmp_path / ("haproxy.exe" if os.name == "nt" else "haproxy")
    binary.write_text("")
    binary.chmod(0o755)

    assert Path(find_proxy()) == binary


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        (["--replicas", "64", "--device", "cpu"], "--replicas=64: "),
        (["--replicas", "none"], "S1_MINI_SERVER_REPLICAS='none': "),
    ],
)
def test_the_command_line_reports_errors_before_anything_starts(
    call: Call, tiny: Path, options: list[str], sentence: str
) -> None:
    code, _, told = call("serve", "--port", "0", "--checkpoint", tiny, *options)

    assert code == 1
    assert told.startswith(f"s1-mini: {sentence}")
    assert len(told.splitlines()) == 1


def test_trusted_proxies_are_the_same_as_without_replicas(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    members = [ReplicaInfo(index, 2, tmp_path / str(index), False) for index in range(2)]

    def told() -> str:
        return describe_proxy(ServerSettings(), members, tmp_path, [3], 4096)

    assert "acl is_proxied src 127.0.0.1/32\n" in told()
    assert trusted_peers() == "127.0.0.1,proxy"
    monkeypatch.setenv("FORWARDED_ALLOW_IPS", "10.0.0.0/8, gateway, ::1")
    assert "acl is_proxied src 10.0.0.0/8 ::1/128\n" in told()
    monkeypatch.setenv("FORWARDED_ALLOW_IPS", "*")
    assert trusted_peers() == "*"


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux has other loopback addresses than 127.0.0.1")
@needs_proxy
def test_one_address_holds_no_more_than_its_share_of_the_connections_unless_it_is_a_trusted_proxy(
    tmp_path: Path,
) -> None:
    members = [ReplicaInfo(index, 2, tmp_path / str(index), False) for index in range(2)]
    (tmp_path / STATES).write_text("now up\n")
    share = 64 // ADDRESSES
    with socket.create_server(("127.0.0.1", 0)) as listener, ExitStack() as stack:
        config = describe_proxy(ServerSettings(), members, tmp_path, [listener.fileno()], 0)
        (tmp_path / "haproxy.cfg").write_text(config)
        command = [find_proxy(), "-db", "-f", str(tmp_path / "haproxy.cfg")]
        proxy = stack.enter_context(subprocess.Popen(command, pass_fds=[listener.fileno()]))
        stack.callback(proxy.terminate)

        def is_taken(source: str) -> bool:
            address = ("127.0.0.1", listener.getsockname()[1])
            try:
                plug = stack.enter_context(socket.create_connection(address, 20, source_address=(source, 0)))
                plug.sendall(b"GET /ping HTTP/1.1\r\nHost: localhost\r\n\r\n")
                return plug.recv(100).startswith(b"HTTP/1.1 503")
            except ConnectionError:
                return False

        taken = [is_taken("127.0.0.2") for _ in range(share + 2)]
        other = is_taken("127.0.0.3")
        trusted = [is_taken("127.0.0.1") for _ in range(share + 2)]

    assert taken == [True] * share + [False] * 2
    assert other
    assert all(trusted)


def test_stages_on_devices_of_their_own_and_several_replicas_exclude_each_other() -> None:
    apart = EngineConfig(device="cuda", placement="codec=cuda:1")

    assert count_replicas("auto", apart, LocalMachine(4, 8, 1e12), 0) == 1
    with pytest.raises(ConfigurationError, match="replicas=2: S1_MINI_PLACEMENT needs several devices"):
        count_replicas(2, apart, LocalMachine(4, 8, 1e12), 0)
