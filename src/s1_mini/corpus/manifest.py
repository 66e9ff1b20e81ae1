"""The state of a corpus: a header that identifies it, its shards, and an entry for each complete shard.

Neither header nor entries contain times or locations, so a resumed job writes the same bytes as an uninterrupted one.
"""

from __future__ import annotations

import hashlib
import io
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

from s1_mini.corpus.output import AT_ONCE, CorpusOutput, is_temporary
from s1_mini.corpus.rows import BadLine, CorpusError, CorpusRow, Shard
from s1_mini.types import AudioFormat, FinishReason

Layout = Literal["files", "parquet"]

FORMAT = "s1-mini corpus 1"
HEADER = "corpus.json"
ENTRIES = "manifest"
SHARDS = "shards"
MANIFEST = "manifest.jsonl"
ERRORS = "errors.jsonl"
METADATA = "metadata.jsonl"
_ENTRY = re.compile(r"(\d{6,})\.json")
_SHARD = re.compile(r"(\d{6,})(?:\.parquet)?")
_MAX_NAMED = 4  # differences in an error message
_GROUP_ROWS = 64  # rows that a Parquet reader must load at once


@dataclass(frozen=True)
class Entry:
    """A complete shard: the SHA-256 of its Parquet or metadata file, and the lines that could not be spoken.

    The metadata of each spoken text has the SHA-256 of its audio.
    """

    shard: int
    texts: int  # lines, good and bad
    spoken: int
    cut: int  # spoken texts with a sentence that reached `max_new_tokens`
    seconds: float  # duration of the audio
    files: Mapping[str, str]  # SHA-256 by name: one Parquet or metadata file
    errors: list[dict[str, Any]] = field(default_factory=list)

    def to_bytes(self) -> bytes:
        return json.dumps(asdict(self)).encode() + b"\n"


@dataclass(frozen=True)
class Spoken:
    """A spoken text; `sound` is the content of its audio file."""

    row: CorpusRow
    sound: bytes
    seconds: float
    sample_rate: int  # of the audio file, in Hz
    finish_reason: FinishReason | None

    def describe(self) -> dict[str, Any]:
        return {
            "id": self.row.id,
            "text": self.row.text,
            "voice": self.row.voice,
            "seed": self.row.options.get("seed"),
            "seconds": self.seconds,
            "sample_rate": self.sample_rate,
            "finish_reason": self.finish_reason,
            "sha256": hashlib.sha256(self.sound).hexdigest(),
        }


def header_bytes(header: Mapping[str, Any]) -> bytes:
    return (json.dumps({"format": FORMAT, **header}, indent=1) + "\n").encode()


def open_manifest(output: CorpusOutput, header: Mapping[str, Any]) -> dict[int, Entry]:
    """Begin or continue a corpus: return the entries of complete shards and delete incomplete files.

    Raises `CorpusError` if the output has other files, belongs to another input or other settings, holds an invalid
    entry, or cannot be read or written.
    """
    found, expected = output.read(HEADER), header_bytes(header)
    if found is None:
        strange = sorted(name for name in output.names("") if not is_temporary(name))
        if strange:
            raise CorpusError(
                f"the output has other files ({', '.join(strange[:_MAX_NAMED])}) but no {HEADER}; "
                "specify a new or empty folder or S3 prefix"
            )
    elif found != expected and (not _is_ours(found) or output.names(ENTRIES)):
        raise CorpusError(_difference(found, header))
    if found != expected:
        output.write(HEADER, expected)
    shards = {match[1]: name for name in output.names(SHARDS) if (match := _SHARD.fullmatch(name))}
    entries = {entry.shard: entry for entry in _read_entries(output) if f"{entry.shard:06}" in shards}
    _sweep(output, entries)
    return entries


def close_manifest(output: CorpusOutput, entries: Mapping[int, Entry], num_shards: int) -> None:
    """Write all entries to one file and all bad lines to another. Raises `CorpusError`, also if a shard is missing."""
    missing = [number for number in range(num_shards) if number not in entries]
    there = output.names(ENTRIES)
    missing += [number for number in entries if f"{number:06}.json" not in there]
    if missing:
        raise CorpusError(
            f"{len(missing)} shards are not in the output (the first is number {missing[0]}): all machines must write "
            "to the same shared folder or s3://bucket/prefix; run the command again with such an output"
        )
    whole = [entries[number] for number in sorted(entries)]
    errors = [json.dumps(error) + "\n" for entry in whole for error in entry.errors]
    output.write(ERRORS, "".join(errors).encode())
    output.write(MANIFEST, b"".join(entry.to_bytes() for entry in whole))


def write_shard(
    output: CorpusOutput, shard: Shard, results: Sequence[Spoken | BadLine], layout: Layout, audio_format: AudioFormat
) -> Entry:
    """Write the results of a shard, then its entry, without which the shard is incomplete. Raises `CorpusError`."""
    spoken = [result for result in results if isinstance(result, Spoken)]
    folder = f"{SHARDS}/{shard.number:06}"
    if layout == "parquet":
        name, content = f"{folder}.parquet", _parquet(spoken)
        output.write(name, content)
    else:
        named = {f"{result.row.number:09}.{audio_format}": result for result in spoken}
        lines = [json.dumps({"file_name": one, **result.describe()}) + "\n" for one, result in named.items()]
        name = f"{folder}/{METADATA}"
        content = "".join(lines).encode()
        sounds = {one: result.sound for one, result in named.items()}
        output.write_folder(folder, {**sounds, METADATA: content})
    entry = Entry(
        shard=shard.number,
        texts=len(results),
        spoken=len(spoken),
        cut=sum(result.finish_reason == "length" for result in spoken),
        seconds=round(sum(result.seconds for result in spoken), 6),
        files={name: hashlib.sha256(content).hexdigest()},
        errors=[
            {"file": bad.file, "line": bad.line, "id": bad.id, "reason": bad.reason}
            for bad in results
            if isinstance(bad, BadLine)
        ],
    )
    output.write(f"{ENTRIES}/{shard.number:06}.json", entry.to_bytes())
    return entry


def _parquet(spoken: Sequence[Spoken]) -> bytes:
    import pyarrow as pa
    from pyarrow import parquet

    schema = pa.schema(
        [
            *((name, pa.string()) for name in ("id", "text", "voice")),
            ("seed", pa.int64()),
            ("seconds", pa.float64()),
            ("sample_rate", pa.int32()),
            ("finish_reason", pa.string()),
            ("sha256", pa.string()),
            ("audio", pa.binary()),
        ]
    )
    table = pa.Table.from_pylist([{**result.describe(), "audio": result.sound} for result in spoken], schema)
    buffer = io.BytesIO()
    # Compression and a dictionary would cost time without making audio files smaller.
    parquet.write_table(table, buffer, compression={"audio": "NONE"}, use_dictionary=False, row_group_size=_GROUP_ROWS)
    return buffer.getvalue()


def _read_entries(output: CorpusOutput) -> Iterator[Entry]:
    names = sorted(name for name in output.names(ENTRIES) if _ENTRY.fullmatch(name))
    with ThreadPoolExecutor(AT_ONCE) as pool:
        for name, content in zip(names, pool.map(output.read, [f"{ENTRIES}/{name}" for name in names]), strict=True):
            try:
                yield Entry(**json.loads(content or b""))
            except (ValueError, TypeError):
                raise CorpusError(
                    f"{ENTRIES}/{name} is not a valid entry; delete it and run the same command again"
                ) from None


def _sweep(output: CorpusOutput, entries: Mapping[int, Entry]) -> None:
    """Delete unfinished files, and shards without an entry."""
    for folder in ("", ENTRIES, SHARDS):
        for name in output.names(folder):
            match = _SHARD.fullmatch(name) if folder == SHARDS else None
            if is_temporary(name) or (match and int(match[1]) not in entries):
                output.remove(f"{folder}/{name}" if folder else name)


def _is_ours(found: bytes) -> bool:
    try:
        return bool(json.loads(found)["format"] == FORMAT)
    except (ValueError, KeyError, TypeError):
        return False


def _difference(found: bytes, header: Mapping[str, Any]) -> str:
    if not _is_ours(found):
        return (
            f"the output holds a {HEADER} that `s1-mini corpus` did not write; "
            "specify a new or empty folder or S3 prefix"
        )
    before = json.loads(found)
    del before["format"]
    old, new = dict(_flat(before)), dict(_flat(json.loads(json.dumps(header))))
    names = [name for name in {**old, **new} if old.get(name) != new.get(name)]
    changes = [f"{name} was {_shown(old.get(name))} and is {_shown(new.get(name))}" for name in names[:_MAX_NAMED]]
    more = f" and {len(names) - _MAX_NAMED} more" if len(names) > _MAX_NAMED else ""
    return (
        f"the output holds a corpus of another input or other settings: {'; '.join(changes)}{more}; "
        "restore the old values, or name a new output"
    )


def _shown(value: object) -> str:
    return "absent" if value is None else json.dumps(value)


def _flat(value: Any, name: str = "") -> Iterator[tuple[str, Any]]:
    if not isinstance(value, dict):
        yield name, value
        return
    for key, each in value.items():
        yield from _flat(each, f"{name}.{key}" if name else key)
