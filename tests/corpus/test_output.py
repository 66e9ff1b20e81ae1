"""Corpus output: shards are complete or absent wherever the run is killed, and foreign files are never deleted."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from itertools import count
from pathlib import Path

import boto3
import pytest
from moto import mock_aws
from pyarrow import parquet

from corpus_room import Local, speak, tree
from deployments import BUCKET, REGION
from s1_mini.cli.corpus import CorpusTally
from s1_mini.corpus.manifest import Entry, Layout, Spoken, close_manifest, open_manifest, write_shard
from s1_mini.corpus.output import CorpusOutput, FolderOutput, S3Output, open_output
from s1_mini.corpus.rows import BadLine, CorpusError, CorpusRow, Shard

HEADER = {"input": {"lines": 4}, "columns": {"text": "text"}}


def rows() -> list[CorpusRow]:
    return [CorpusRow(i, "a.csv", i + 2, f"id-{i}", f"Text {i}.", None, {"seed": i}) for i in range(4)]


SHARDS = [Shard(number, tuple(rows()[2 * number : 2 * number + 2])) for number in range(2)]


def write_all(output: CorpusOutput, layout: Layout = "files") -> None:
    """Write a corpus whose audio is the bytes of the texts."""
    entries = open_manifest(output, HEADER)
    for shard in SHARDS:
        if shard.number not in entries:
            results: list[Spoken | BadLine] = [
                Spoken(row, row.text.encode() * 9, 0.25, 16_000, "stop")
                for row in shard.lines
                if isinstance(row, CorpusRow)
            ]
            if shard.number == 1:
                results[0] = BadLine(2, "a.csv", 4, "id-2", "nothing to say")
            entries[shard.number] = write_shard(output, shard, results, layout, "wav")
    close_manifest(output, entries, len(SHARDS))


class Killed(BaseException):
    """An exception that no code catches."""


@contextmanager
def killed_at(step: int) -> Iterator[None]:
    """Abort at the n-th disk operation: write, create, rename or delete."""
    steps = count(1)

    def ending(original: Callable[..., object]) -> Callable[..., object]:
        def call(*arguments: object, **more: object) -> object:
            if next(steps) == step:
                raise Killed
            return original(*arguments, **more)

        return call

    with pytest.MonkeyPatch.context() as patch:
        for owner, name in (
            (os, "fsync"),
            (shutil, "rmtree"),
            *((Path, name) for name in ("replace", "rename", "mkdir")),
        ):
            patch.setattr(owner, name, ending(getattr(owner, name)))
        yield


@pytest.mark.parametrize("layout", ["files", "parquet"])
def test_a_corpus_killed_twice_at_any_steps_ends_with_the_same_bytes(layout: Layout, tmp_path: Path) -> None:
    write_all(FolderOutput(tmp_path / "whole"), layout)

    for step in count(1):
        output, kills = FolderOutput(tmp_path / f"killed-{step}"), 0
        for _ in range(2):
            with suppress(Killed), killed_at(step):
                write_all(output, layout)
                kills -= 1
            kills += 1
        write_all(output, layout)
        assert tree(tmp_path / f"killed-{step}") == tree(tmp_path / "whole")
        if not kills:
            break
    assert step > 20


def test_the_error_table_has_file_line_id_and_reason(tmp_path: Path) -> None:
    write_all(FolderOutput(tmp_path))

    assert json.loads((tmp_path / "errors.jsonl").read_bytes()) == {
        "file": "a.csv",
        "line": 4,
        "id": "id-2",
        "reason": "nothing to say",
    }


def test_a_parquet_shard_has_the_audio_and_all_its_metadata(tmp_path: Path) -> None:
    write_all(FolderOutput(tmp_path), "parquet")

    tables = [parquet.read_table(path) for path in sorted((tmp_path / "shards").glob("*.parquet"))]
    read = [row for table in tables for row in table.to_pylist()]
    assert [row["id"] for row in read] == ["id-0", "id-1", "id-3"]
    assert read[0] == {
        "id": "id-0",
        "text": "Text 0.",
        "voice": None,
        "seed": 0,
        "seconds": 0.25,
        "sample_rate": 16_000,
        "finish_reason": "stop",
        "sha256": hashlib.sha256(b"Text 0." * 9).hexdigest(),
        "audio": b"Text 0." * 9,
    }


def test_a_changed_input_or_setting_is_refused_with_the_difference_and_changes_nothing(tmp_path: Path) -> None:
    write_all(FolderOutput(tmp_path))
    before = tree(tmp_path)
    other = {"input": {"lines": 7}, "columns": {"text": "text"}, "layout": "parquet"}

    with pytest.raises(
        CorpusError, match=r"input\.lines was 4 and is 7; layout was absent and is \"parquet\"; restore"
    ):
        open_manifest(FolderOutput(tmp_path), other)

    assert tree(tmp_path) == before


@pytest.mark.parametrize(
    ("name", "sentence"),
    [
        (
            "thesis.doc",
            r"the output has other files \(thesis.doc\) but no corpus.json; specify a new or empty folder or S3 prefix",
        ),
        (
            "corpus.json",
            "holds a corpus.json that `s1-mini corpus` did not write; specify a new or empty folder or S3 prefix",
        ),
    ],
)
def test_a_folder_with_other_files_is_refused_and_left_unchanged(name: str, sentence: str, tmp_path: Path) -> None:
    (tmp_path / name).write_text('{"my": "own"}')

    with pytest.raises(CorpusError, match=sentence):
        open_manifest(FolderOutput(tmp_path), HEADER)

    assert tree(tmp_path) == {name: b'{"my": "own"}'}


def test_foreign_files_next_to_the_shards_are_not_deleted(tmp_path: Path) -> None:
    write_all(FolderOutput(tmp_path))
    (tmp_path / "shards" / "README").write_text("Mine.")

    write_all(FolderOutput(tmp_path))

    assert (tmp_path / "shards" / "README").read_text() == "Mine."


def test_a_file_as_output_is_refused(tmp_path: Path) -> None:
    (tmp_path / "out").write_text("")

    with pytest.raises(CorpusError, match="out is a file; specify a folder for the output"):
        open_output(str(tmp_path / "out"))


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="only Linux has a device that is always full")
def test_a_full_disk_is_reported_with_a_hint(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    original = Path.open
    monkeypatch.setattr(Path, "open", lambda _, mode: original(Path("/dev/full"), mode.replace("x", "w")))

    with pytest.raises(
        CorpusError, match="cannot be written: No space left on device; fix this problem and run the same command"
    ):
        FolderOutput(tmp_path).write("a", b"x")


def test_a_shard_that_is_missing_at_the_end_is_reported(tmp_path: Path) -> None:
    """This happens when an actor wrote to its own disk."""
    write_all(FolderOutput(tmp_path))
    entries = open_manifest(FolderOutput(tmp_path), HEADER)
    (tmp_path / "manifest" / "000001.json").unlink()

    with pytest.raises(
        CorpusError, match="1 shards are not in the output \\(the first is number 1\\): all machines must"
    ):
        close_manifest(FolderOutput(tmp_path), entries, 2)


@pytest.fixture
def bucket(account: None) -> Iterator[None]:
    """A moto bucket."""
    with mock_aws():
        boto3.client("s3").create_bucket(Bucket=BUCKET, CreateBucketConfiguration={"LocationConstraint": REGION})
        yield


def objects(prefix: str) -> dict[str, bytes]:
    client = boto3.client("s3")
    found = client.list_objects_v2(Bucket=BUCKET, Prefix=prefix).get("Contents", [])
    return {
        one["Key"].removeprefix(prefix): client.get_object(Bucket=BUCKET, Key=one["Key"])["Body"].read()
        for one in found
    }


@pytest.mark.parametrize(("layout", "at"), [("files", 1), ("files", 3), ("files", 6), ("files", 9), ("parquet", 3)])
def test_s3_gets_the_same_objects_even_after_a_kill(
    layout: Layout, at: int, bucket: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_all(FolderOutput(tmp_path), layout)
    original, steps, output = S3Output.write, count(1), open_output(f"s3://{BUCKET}/out")

    def write(self: S3Output, name: str, content: bytes) -> None:
        if next(steps) == at:
            raise Killed
        original(self, name, content)

    monkeypatch.setattr(S3Output, "write", write)
    with pytest.raises(Killed):
        write_all(output, layout)
    monkeypatch.setattr(S3Output, "write", original)
    if at > 1:  # it has its header
        boto3.client("s3").put_object(Bucket=BUCKET, Key="out/shards/000007/left.wav", Body=b"half")
    write_all(output, layout)

    assert objects("out/") == tree(tmp_path)


@pytest.mark.parametrize(
    ("key", "source"),
    [
        ("in/texts.jsonl", "in"),
        ("_in/texts.jsonl", "_in/texts.jsonl"),
        ("texts.jsonl/texts.jsonl", "texts.jsonl"),  # as Spark writes them
    ],
)
def test_a_corpus_is_read_from_and_written_to_s3(  # noqa: PLR0917 - fixtures
    bucket: None, whole: Path, texts: Path, key: str, source: str, local: Local
) -> None:
    client = boto3.client("s3")
    client.upload_file(str(texts), BUCKET, key)
    if source != "in":  # the output is complete, and another input would be refused
        for name, content in tree(whole).items():
            client.put_object(Bucket=BUCKET, Key=f"out/{name}", Body=content)

    assert local(f"s3://{BUCKET}/{source}", f"s3://{BUCKET}/out") == 0

    assert objects("out/") == tree(whole)


@pytest.mark.parametrize(
    ("source", "output", "sentence"),
    [
        (f"s3://{BUCKET}/nothing", "out", f"s3://{BUCKET}/nothing has no object whose name ends in .csv, .tsv, .jsonl"),
        (f"s3://{BUCKET}/no.csv", "out", f"s3://{BUCKET}/no.csv does not exist"),
        ("texts.csv", "s3://no-such-bucket/out", "output s3://no-such-bucket/out: "),
        ("s3://", "out", "'s3://' is not a valid S3 location: '' cannot be the name of a bucket"),
    ],
)
def test_an_s3_error_is_reported_in_one_sentence(  # noqa: PLR0917 - fixtures
    source: str,
    output: str,
    sentence: str,
    bucket: None,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "texts.csv").write_text("text\nOne.\n")

    assert speak(monkeypatch, source, output, "--local") == 1

    assert sentence in capsys.readouterr().err


def test_audio_per_hour_cost_and_time_left_are_of_this_run() -> None:
    now = [100.0]
    tally = CorpusTally(total=100, price=7.2, clock=lambda: now[0])
    entry = Entry(shard=0, texts=20, spoken=19, cut=1, seconds=900, files={}, errors=[{"line": 1}])
    tally.add(entry)
    tally.begin()
    assert tally.describe() == "0.0 h of audio per hour, cost 0.00"

    now[0] = 1000.0
    tally.add(replace(entry, seconds=1800))

    assert (tally.done, tally.bad, tally.cut, tally.seconds) == (40, 2, 2, 2700)
    assert tally.describe() == "2.0 h of audio per hour, cost 1.80 of 7.20, 0:45:00 left"
