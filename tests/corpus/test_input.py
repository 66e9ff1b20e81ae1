"""Corpus input: CSV, TSV, JSON lines and Parquet with columns of any name, and error messages for bad input."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pytest
from pyarrow import parquet

from corpus_room import speak
from s1_mini.corpus.rows import BadLine, CorpusError, CorpusRow, Defaults, seed_of
from s1_mini.corpus.source import open_source

ROWS = [
    {"key": "a", "says": "One.", "speaker": "clara", "number": 7, "how": {"temperature": 0.5, "top_k": 3}},
    {"key": "b", "says": "Two, in\nlines.", "speaker": None, "number": None, "how": None},
]
ASKED = {"text": "says", "id": "key", "voice": "speaker", "seed": "number", "parameters": "how"}


def as_table(path: Path, delimiter: str) -> None:
    quoted = [
        [
            json.dumps(value) if isinstance(value, dict) else "" if value is None else str(value)
            for value in row.values()
        ]
        for row in ROWS
    ]
    lines = [delimiter.join('"' + each.replace('"', '""') + '"' for each in row) for row in [[*ROWS[0]], *quoted]]
    path.write_text("\ufeff" + "\n".join(lines) + "\n", encoding="utf-8")


WRITERS: dict[str, Callable[[Path], object]] = {
    "csv": lambda path: as_table(path, ","),
    "tsv": lambda path: as_table(path, "\t"),
    "jsonl": lambda path: path.write_text("".join(json.dumps(row) + "\n" for row in ROWS)),
    "ndjson": lambda path: path.write_text("".join(json.dumps(row) + "\n" for row in ROWS)),
    "parquet": lambda path: parquet.write_table(pa.Table.from_pylist(ROWS), path),
}


def read(place: Path, asked: dict[str, str | None] | None = None, **defaults: object) -> list[CorpusRow | BadLine]:
    with open_source(str(place), asked or {}, Defaults(**defaults), 2) as source:  # type: ignore[arg-type]
        lines = [line for shard in source.shards() for line in shard.lines]
        assert len(lines) == source.num_lines
        return lines


@pytest.mark.parametrize("suffix", WRITERS)
def test_every_format_gives_the_same_rows(suffix: str, tmp_path: Path) -> None:
    path = tmp_path / f"texts.{suffix}"
    WRITERS[suffix](path)

    first, second = read(path, ASKED, voice="anna", seed=5, options={"top_p": 0.3})  # type: ignore[misc]

    assert isinstance(first, CorpusRow)
    assert (first.number, first.id, first.text, first.voice) == (0, "a", "One.", "clara")
    assert first.options == {"temperature": 0.5, "top_p": 0.3, "top_k": 3, "seed": 7}
    assert isinstance(second, CorpusRow)
    assert (second.number, second.id, second.text, second.voice) == (1, "b", "Two, in\nlines.", "anna")
    assert second.options == {"top_p": 0.3, "seed": seed_of("b", 5)}


def test_common_column_names_are_used_by_default_and_can_be_turned_off(tmp_path: Path) -> None:
    path = tmp_path / "texts.jsonl"
    path.write_text('{"text": "One.", "voice": "p225", "seed": 4, "id": "a"}\n{"text": "Two.", "id": "a"}\n')

    first, second = read(path, {"voice": "", "id": ""})

    assert isinstance(first, CorpusRow)
    assert isinstance(second, CorpusRow)
    assert (first.id, first.voice, first.options["seed"]) == ("0", None, 4)
    assert (second.id, second.options["seed"]) == ("1", seed_of("1", 0))


def test_a_line_may_have_any_parameter(tmp_path: Path) -> None:
    path = tmp_path / "texts.jsonl"
    given = {"on_unsupported": "skip", "language": "en", "instructions": "Whisper.", "temperature": 0.5}
    given |= {"speed": 1.5, "gain_db": -3.0, "sample_rate": 8000, "normalize": "off", "lexicon": {"ISO": "eye so"}}
    lines = [{"text": "One."}, {"text": "Two.", "parameters": given}]
    path.write_text(
        "\n".join(json.dumps(line) for line in [*lines, {"text": "A.", "parameters": {"on_unsupported": 1}}])
    )

    first, second, third = read(path)

    assert isinstance(first, CorpusRow)
    assert isinstance(second, CorpusRow)
    assert isinstance(third, BadLine)
    assert first.options == {"seed": seed_of("0", 0)}
    assert second.options == {**given, "seed": seed_of("1", 0)}
    assert third.reason == "on_unsupported: must be one of error, skip, not 1"


@pytest.mark.parametrize("name", ["texts.jsonl", "texts.csv", "texts.tsv"])
def test_a_file_may_begin_with_a_byte_order_mark_and_another_encoding_is_named(tmp_path: Path, name: str) -> None:
    path, content = tmp_path / name, '{"text": "Grüße."}\n' if name.endswith("jsonl") else "text\nGrüße.\n"
    path.write_bytes(content.encode("utf-8-sig"))
    (row,) = read(path)
    assert isinstance(row, CorpusRow)
    assert row.text == "Grüße."

    for encoding in ("utf-16", "utf-16-le", "utf-32"):
        path.write_bytes(content.encode(encoding))
        with pytest.raises(CorpusError, match=f"is {encoding[:6].upper()}; save it as UTF-8"):
            read(path)


def test_a_seed_is_derived_from_the_id_and_is_the_same_in_all_versions() -> None:
    assert seed_of("a", 0) == 3020425808536308780
    assert seed_of("a", 1) == 7158381635676926530
    assert len({seed_of(str(number), 0) for number in range(1000)}) == 1000


def test_a_folder_is_read_by_name_and_lines_are_numbered_over_all_its_files(tmp_path: Path) -> None:
    (tmp_path / "b.csv").write_text("text\nThree.\n")
    (tmp_path / "a.jsonl").write_text('{"text": "One."}\n\n{"text": "Two."}\n')
    (tmp_path / "_SUCCESS.csv").write_text("")
    (tmp_path / "notes.txt").write_text("Not read.")

    rows = read(tmp_path)

    assert [(row.number, row.file, row.line, row.id) for row in rows] == [
        (0, "a.jsonl", 1, "0"),
        (1, "a.jsonl", 3, "1"),
        (2, "b.csv", 2, "2"),
    ]


def test_a_malformed_csv_row_is_reported_with_the_line_where_it_begins(tmp_path: Path) -> None:
    path = tmp_path / "texts.csv"
    path.write_text('id,text\na,"two\nlines"\nb,one,more\nc\nd,fine\ne,"open\nto the end\n')

    rows = read(path)

    assert [(row.line, getattr(row, "reason", "")) for row in rows] == [
        (2, ""),
        (4, "has 3 fields, but the header has 2"),
        (5, "has 1 fields, but the header has 2"),
        (6, ""),
        (7, "is not valid CSV (read as far as line 8): unexpected end of data"),
    ]


def test_a_line_that_is_too_long_is_reported_and_the_next_is_read(tmp_path: Path) -> None:
    path = tmp_path / "texts.jsonl"
    path.write_bytes(b'{"text": "' + b"a" * 5_000_000 + b'"}\n{"text": "Next."}\n')

    first, second = read(path)

    assert isinstance(first, BadLine)
    assert first.reason == "is longer than 4,194,304 bytes"
    assert isinstance(second, CorpusRow)
    assert second.line == 2


def test_no_line_of_a_table_with_gaps_in_its_numbers_is_lost(tmp_path: Path) -> None:
    path = tmp_path / "texts.parquet"
    seeds, parameters = pa.array([3.0, float("nan")]), ['{"top_p": 1}', ""]
    table = pa.table({"text": ["One.", "Two."], "seed": seeds, "parameters": parameters})
    parquet.write_table(table, path)

    first, second = read(path)

    assert isinstance(first, CorpusRow)
    assert (first.options["seed"], first.options["top_p"]) == (3, 1)
    assert isinstance(second, CorpusRow)
    assert second.options["seed"] == seed_of("1", 0)


REFUSED = {
    "missing.csv": (None, "does not exist; give a file that ends in .csv, .tsv, .jsonl, .ndjson, .parquet"),
    "texts.txt": (b"One.", "is not a supported file or a folder of such files; names must end in"),
    "sentence.csv": (
        b"id,sentence\n1,One.\n",
        "has no column 'text'; its columns are id, sentence; choose one with --text",
    ),
    "keys.jsonl": (
        b'{"a": 1}\n{"b": 2}\n',
        "has no column 'text'; its columns are a, b; choose one with --text-column",
    ),
    "twice.csv": (b"text,text\n1,2\n", "its header repeats 'text'"),
    "empty.csv": (b"", "has no column 'text'; its columns are none"),
    "header.csv": (b"text\n", "has no text: all lines are blank"),
    "broken.parquet": (b"PAR1 and no more PAR1", "broken.parquet cannot be read: "),
    "same.jsonl": (
        b'{"id": "x", "text": "1"}\n{"id": "y", "text": "2"}\n{"id": "x", "text": "3"}\n',
        "id 'x' occurs twice, in line 1 of same.jsonl and line 3 of same.jsonl; make ids unique, or number the lines "
        'instead with --id-column ""',
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_unreadable_input_is_one_sentence_with_a_hint_and_creates_no_output(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    content, sentence = REFUSED[name]
    if content is not None:
        (tmp_path / name).write_bytes(content)

    assert speak(monkeypatch, tmp_path / name, tmp_path / "out", "--local") == 1

    output = capsys.readouterr().err
    assert output.startswith("s1-mini: ")
    assert sentence in output
    assert output.count("\n") == 1
    assert not (tmp_path / "out").exists()


def test_a_requested_column_that_is_missing_is_refused(tmp_path: Path) -> None:
    (tmp_path / "texts.csv").write_text("text\nOne.\n")

    with pytest.raises(
        CorpusError, match="has no column 'speaker'; its columns are text; choose one with --voice-column"
    ):
        read(tmp_path / "texts.csv", {"voice": "speaker"})


def test_a_file_that_changes_during_the_run_is_reported(tmp_path: Path) -> None:
    path = tmp_path / "texts.csv"
    path.write_text("text\nOne.\nTwo.\nThree.\n")

    with open_source(str(path), {}, Defaults(), 1) as source:
        shards = source.shards()
        next(shards)
        path.write_text("text\nOne.\nTwo.\nThree.\nFour.\n")
        with pytest.raises(CorpusError, match=r"texts\.csv changed during the run; choose a new output"):
            list(shards)


def test_parquet_without_its_package_is_reported_with_the_install_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "texts.parquet").write_bytes(b"")
    (tmp_path / "texts.csv").write_text("text\nOne.\n")
    monkeypatch.setattr("s1_mini.extras.find_spec", lambda name: None if name == "pyarrow" else object())

    assert speak(monkeypatch, tmp_path / "texts.parquet", tmp_path / "out", "--local") == 1
    output = capsys.readouterr().err
    assert 'reading texts.parquet needs pyarrow, which is not installed: pip install "s1-mini[corpus]"' in output
    assert speak(monkeypatch, tmp_path / "texts.csv", tmp_path / "out", "--local", "--layout", "parquet") == 1
    output = capsys.readouterr().err
    assert '--layout parquet needs pyarrow, which is not installed: pip install "s1-mini[corpus]"' in output
