"""What stands of a corpus: a header that says of what it is, and an entry for each shard that is whole.

A header and entries hold no time and no place, so an interrupted corpus ends with the same bytes as another.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field
from typing import Any

from s1_mini.corpus.errors import CorpusError
from s1_mini.corpus.output import AT_ONCE, Output, is_temporary

FORMAT = "s1-mini corpus 1"
HEADER = "corpus.json"
ENTRIES = "manifest"
SHARDS = "shards"
MANIFEST = "manifest.jsonl"
ERRORS = "errors.jsonl"
_ENTRY = re.compile(r"(\d{6,})\.json")
_SHARD = re.compile(r"(\d{6,})(?:\.parquet)?")
_MAX_NAMED = 4  # differences in a sentence


@dataclass(frozen=True)
class Entry:
    """One shard that is whole: its files with their SHA-256, and the lines of it that could not be spoken."""

    shard: int
    texts: int  # lines, good and bad
    spoken: int
    cut: int  # of those spoken, how many have a sentence that reached `max_new_tokens`
    seconds: float  # of sound
    files: Mapping[str, str]
    errors: list[dict[str, Any]] = field(default_factory=list)

    def to_bytes(self) -> bytes:
        """Write it as one line of JSON, the same for the same content."""
        return json.dumps(asdict(self)).encode() + b"\n"


def entry_name(shard: int) -> str:
    """Give the name of a shard's entry."""
    return f"{ENTRIES}/{shard:06}.json"


def shard_name(shard: int) -> str:
    """Give the name of a shard, without a suffix."""
    return f"{SHARDS}/{shard:06}"


def header_bytes(header: Mapping[str, Any]) -> bytes:
    """Write a header."""
    return (json.dumps({"format": FORMAT, **header}, indent=1) + "\n").encode()


def open_manifest(output: Output, header: Mapping[str, Any]) -> dict[int, Entry]:
    """Begin a corpus, or go on with it: give the entries of what is whole, and sweep what is half written.

    Raises `CorpusError` if the output holds something else, or a corpus of another input or other settings of which
    something is spoken.
    """
    found = output.read(HEADER)
    if found is None:
        strange = sorted(name for name in output.names("") if not is_temporary(name))
        if strange:
            raise CorpusError(
                f"the output is not empty and holds no {HEADER}, but {', '.join(strange[:_MAX_NAMED])}; "
                "name a new or empty place"
            )
        output.write(HEADER, header_bytes(header))
    elif found != header_bytes(header):
        if not _is_ours(found) or output.names(ENTRIES):
            raise CorpusError(_difference(found, header))
        output.write(HEADER, header_bytes(header))
    shards = {match[1]: name for name in output.names(SHARDS) if (match := _SHARD.fullmatch(name))}
    entries = {entry.shard: entry for entry in _read_entries(output) if f"{entry.shard:06}" in shards}
    _sweep(output, entries)
    return entries


def close_manifest(output: Output, entries: Mapping[int, Entry], num_shards: int) -> None:
    """Write all entries as one file, and all bad lines as another. Raises `CorpusError` if a shard is missing."""
    missing = [number for number in range(num_shards) if number not in entries]
    there = output.names(ENTRIES)
    missing += [number for number in entries if f"{number:06}.json" not in there]
    if missing:
        raise CorpusError(
            f"{len(missing)} shards are not in the output, the first is number {missing[0]}: all machines must write "
            "to the same place, a folder that they share or s3://bucket/prefix; run the same again there"
        )
    whole = [entries[number] for number in sorted(entries)]
    errors = [json.dumps(error) + "\n" for entry in whole for error in entry.errors]
    output.write(ERRORS, "".join(errors).encode())
    output.write(MANIFEST, b"".join(entry.to_bytes() for entry in whole))


def _read_entries(output: Output) -> Iterator[Entry]:
    names = sorted(name for name in output.names(ENTRIES) if _ENTRY.fullmatch(name))
    with ThreadPoolExecutor(AT_ONCE) as pool:
        for name, content in zip(names, pool.map(output.read, [f"{ENTRIES}/{name}" for name in names]), strict=True):
            try:
                yield Entry(**json.loads(content or b""))
            except (ValueError, TypeError):
                raise CorpusError(f"{ENTRIES}/{name} is no entry; delete it and run the same again") from None


def _sweep(output: Output, entries: Mapping[int, Entry]) -> None:
    """Delete what a kill has left half written, and shards that have no entry."""
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
        return f"the output holds a {HEADER} that is not of this program; name a new or empty place"
    before = json.loads(found)
    del before["format"]
    old, new = dict(_flat(before)), dict(_flat(json.loads(json.dumps(header))))
    names = [name for name in {**old, **new} if old.get(name) != new.get(name)]
    told = [f"{name} was {_told(old.get(name))} and is {_told(new.get(name))}" for name in names[:_MAX_NAMED]]
    more = f" and {len(names) - _MAX_NAMED} more" if len(names) > _MAX_NAMED else ""
    return (
        f"the output holds a corpus of another input or other settings: {'; '.join(told)}{more}; "
        "run this as it was, or name a new output"
    )


def _told(value: object) -> str:
    return "not there" if value is None else json.dumps(value)


def _flat(value: Any, name: str = "") -> Iterator[tuple[str, Any]]:
    if not isinstance(value, dict):
        yield name, value
        return
    for key, each in value.items():
        yield from _flat(each, f"{name}.{key}" if name else key)
