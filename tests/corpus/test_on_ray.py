"""A corpus on Ray actors equals that of one engine, whichever actor is killed. Tests without Ray come first."""

from __future__ import annotations

import os
import re
import signal
import sys
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace

import pytest

from corpus_room import SHORT, begin, num_entries, speak, tree
from own_folder import RAY_GAVE_UP, path_with
from s1_mini import EngineConfig
from s1_mini.corpus.job import Job, fingerprints
from s1_mini.corpus.manifest import HEADER, Entry, header_bytes
from s1_mini.corpus.rows import BadLine, CorpusError, Shard
from s1_mini.corpus.workers import Actor, Member, Team, actors_for, work_on_ray
from s1_mini.exceptions import S1MiniError
from waiting import EVENTUALLY_S, wait_until

GPU, CPU = {"num_cpus": 0, "num_gpus": 1}, {"num_cpus": 1, "num_gpus": 0}


@pytest.mark.parametrize(
    ("there", "device", "wanted", "needs"),
    [
        ({"CPU": 4}, "auto", None, (1, CPU)),
        ({"CPU": 4}, "auto", 3, (3, CPU)),
        ({"CPU": 64, "GPU": 8}, "auto", None, (8, GPU)),
        ({"CPU": 64, "GPU": 8}, "cuda", 2, (2, GPU)),
        ({"CPU": 64, "GPU": 8}, "cpu", 60, (60, CPU)),
    ],
)
def test_there_is_one_actor_for_each_gpu_or_the_requested_number(
    there: dict[str, float], device: str, wanted: int | None, needs: tuple[int, dict[str, int]]
) -> None:
    assert actors_for(there, device, wanted) == needs


@pytest.mark.parametrize(
    ("there", "device", "wanted", "sentence"),
    [
        (
            {"CPU": 64, "GPU": 8},
            "auto",
            9,
            "9 actors need a GPU each, and Ray has 8; add GPUs or CPUs to Ray, or request fewer actors",
        ),
        ({"CPU": 2}, "auto", 3, "3 actors need a CPU each, and Ray has 2"),
        ({"CPU": 2}, "cuda", 1, "1 actors need a GPU each, and Ray has 0"),
    ],
)
def test_more_actors_than_resources_allow_are_refused(
    there: dict[str, float], device: str, wanted: int, sentence: str
) -> None:
    with pytest.raises(CorpusError, match=sentence):
        actors_for(there, device, wanted)


@pytest.fixture
def job(tiny: Path, tmp_path: Path) -> Job:
    """A job with an initialised output."""
    config = EngineConfig(checkpoint_path=tiny, device="cpu")
    header = fingerprints(config, ())
    (tmp_path / HEADER).write_bytes(header_bytes(header))
    return Job(config, str(tmp_path), "files", "wav", header)


def test_an_actor_starts_its_engine_and_reports_how_many_shards_it_takes(job: Job) -> None:
    actor = Actor(job)

    num_shards, where = actor.start()  # type: ignore[misc]
    entry = actor.work(Shard(0, (BadLine(0, "a.csv", 1, None, "has no text"),)))

    assert num_shards == 7
    assert str(os.getpid()) in where
    assert isinstance(entry, Entry)
    assert entry.errors[0]["reason"] == "has no text"


@pytest.mark.parametrize(
    ("address", "place"), [("", "could be started on this machine"), ("ray:1", "answers at RAY_ADDRESS='ray:1'")]
)
def test_a_ray_that_does_not_start_is_reported_with_its_reason(
    job: Job, address: str, place: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def init(**_: object) -> None:
        raise Exception("timed out")  # noqa: TRY002 - as Ray does

    monkeypatch.setitem(sys.modules, "ray", SimpleNamespace(init=init))
    monkeypatch.setenv("RAY_ADDRESS", address)
    monkeypatch.setenv("RAY_USAGE_STATS_ENABLED", "0")

    with pytest.raises(CorpusError, match=f"no Ray cluster {place}: timed out"):
        next(work_on_ray(job, shards(1), None, lambda _: None))


class KilledError(Exception):
    """The error of a call whose actor was killed."""


class StandIn:
    """An actor that synthesizes eight shards at a time, each when the test releases it."""

    def __init__(self) -> None:
        self.shards: dict[int, Future[Entry | S1MiniError]] = {}
        self.member = Member(Future(), self.begin)

    def start(self) -> None:
        self.member.starting.set_result((8, "an actor"))

    def begin(self, shard: Shard) -> Future[Entry | S1MiniError]:
        self.shards[shard.number] = Future()
        return self.shards[shard.number]

    def finish(self, number: int) -> None:
        self.shards[number].set_result(Entry(number, 1, 1, 0, 1.0, {}))


def shards(count: int) -> Iterator[Shard]:
    return (Shard(number, (BadLine(number, "a.csv", number, None, ""),)) for number in range(count))


def test_shards_are_left_for_actors_that_start_later() -> None:
    first, second = StandIn(), StandIn()
    first.start()

    entries = Team([first.member, second.member], lambda _: None).work(shards(8))
    with ThreadPoolExecutor(1) as pool:
        entry = pool.submit(next, entries)
        wait_until(lambda: len(first.shards) == 4)
        second.start()
        wait_until(lambda: len(second.shards) == 4)
        first.finish(0)
        assert entry.result().shard == 0
    for number in (1, 2, 3):
        first.finish(number)
    for number in second.shards:
        second.finish(number)

    assert sorted(entry.shard for entry in entries) == [*range(1, 8)]
    assert len(first.shards) == len(second.shards) == 4


def test_a_shard_of_a_lost_actor_is_spoken_by_another_one_and_a_second_loss_ends_the_run() -> None:
    first, second, output = StandIn(), StandIn(), list[str]()
    entries = Team([first.member, second.member], output.append, KilledError).work(shards(1))
    with ThreadPoolExecutor(1) as pool:
        entry = pool.submit(next, entries)
        for each in (first, second):
            each.start()
            wait_until(lambda each=each: len(each.shards) == 1)  # type: ignore[misc]
            each.shards[0].set_exception(KilledError("no memory"))
        with pytest.raises(CorpusError, match=r"shard 0, from line 0 of a.csv, has lost its actor 8 times: no memory"):
            entry.result()

    assert "an actor was lost, and others generate its shards: no memory" in output


def test_an_actor_that_sees_another_output_or_another_checkpoint_says_so(job: Job) -> None:
    header = Path(job.output) / HEADER

    other = {**job.header, "checkpoint": "0" * 64}
    header.write_bytes(header_bytes(other))
    output = Actor(Job(job.config, job.output, "files", "wav", other)).start()
    assert str(output).startswith(
        "checkpoint: the files differ on this machine; use identical files on all machines (process "
    )

    header.unlink()
    output = Actor(job).start()
    assert "is a different place on this machine; specify s3://bucket/prefix or a shared folder (process " in str(
        output
    )


def test_missing_ray_is_reported_with_the_install_command(
    texts: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("s1_mini.extras.find_spec", lambda name: None if name == "ray" else object())

    assert speak(monkeypatch, texts, tmp_path / "out", "--actors", 2) == 1
    output = capsys.readouterr().err
    assert 'without --local needs ray, which is not installed: pip install "s1-mini[ray]"' in output
    assert not (tmp_path / "out").exists()

    assert speak(monkeypatch, texts, tmp_path / "out", "--actors", 2, "--local") == 1
    assert "--actors: requires Ray and cannot be combined with --local" in capsys.readouterr().err


@pytest.fixture(scope="module")
def with_ray(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A PYTHONPATH with Ray."""
    return path_with("ray", tmp_path_factory.mktemp("ray"), "--requirement", "requirements-ray.txt")


def speak_on_ray(texts: Path, output: Path, *words: object, log: Path, path: str) -> int:
    """Run the command, again if Ray gave up; return its exit code."""
    for _ in range(5):
        code = begin(texts, output, *words, log=log, PYTHONPATH=path).wait(EVENTUALLY_S)
        if RAY_GAVE_UP not in log.read_text():
            break
        log.unlink()
    return code


@pytest.mark.ray
@pytest.mark.skipif(sys.platform != "linux", reason="Ray's own processes are looked after by Linux alone")
def test_two_actors_give_the_bytes_of_one_engine(
    with_ray: str, whole: Path, texts: Path, tiny: Path, tmp_path: Path
) -> None:
    log, words = tmp_path / "log", ("--actors", 2, "--checkpoint", tiny, *SHORT)

    assert speak_on_ray(texts, tmp_path / "out", *words, log=log, path=with_ray) == 0, log.read_text()
    assert re.findall(r"process (\d+) on", log.read_text())  # two, if the first left any to the second
    assert tree(tmp_path / "out") == tree(whole)


@pytest.mark.ray
@pytest.mark.skipif(sys.platform != "linux", reason="Ray's own processes are looked after by Linux alone")
def test_killing_a_driver_and_an_actor_loses_and_duplicates_no_text(
    with_ray: str, whole: Path, texts: Path, tiny: Path, tmp_path: Path
) -> None:
    log, output = tmp_path / "log", tmp_path / "out"
    words = ("--actors", 2, "--checkpoint", tiny, *SHORT, "--in-flight", 1)
    process = begin(texts, output, *words, log=log, PYTHONPATH=with_ray)
    wait_until(lambda: num_entries(output) > 0, process=process, log=log)
    process.kill()
    process.wait()
    assert not (output / "manifest.jsonl").exists()

    log.unlink()
    process = begin(texts, output, *words, log=log, PYTHONPATH=with_ray)
    wait_until(lambda: "process" in log.read_text(), process=process, log=log)
    (actor, *_) = re.findall(r"process (\d+) on", log.read_text())
    os.kill(int(actor), signal.SIGKILL)

    assert process.wait(EVENTUALLY_S) == 0, log.read_text()
    assert tree(output) == tree(whole)


@pytest.mark.ray
@pytest.mark.skipif(sys.platform != "linux", reason="Ray's own processes are looked after by Linux alone")
def test_an_error_of_every_actor_ends_the_run_with_its_message(
    with_ray: str, texts: Path, tiny: Path, tmp_path: Path
) -> None:
    log, words = tmp_path / "log", ("--checkpoint", tiny, *SHORT)

    assert speak_on_ray(texts, tmp_path / "out", *words, "--voice", "nobody", log=log, path=with_ray) == 1
    assert "s1-mini: no actor is left: voice: unknown voice 'nobody'" in log.read_text()

    assert speak_on_ray(texts, tmp_path / "other", *words, "--actors", 4000, log=log, path=with_ray) == 1
    assert "s1-mini: 4000 actors need a CPU each, and Ray has " in log.read_text()
    assert "Traceback" not in log.read_text()
