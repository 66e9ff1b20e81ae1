"""Writes a shard: a folder of sound files, or one Parquet file; then its entry, which makes it count."""

from __future__ import annotations

import hashlib
import io
import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal

from s1_mini.corpus.manifest import Entry, entry_name, shard_name
from s1_mini.corpus.output import Output
from s1_mini.corpus.rows import BadLine, Row, Shard
from s1_mini.types import AudioFormat, FinishReason

Layout = Literal["files", "parquet"]

METADATA = "metadata.jsonl"
_GROUP_ROWS = 64  # that a reader of Parquet has to hold at once


@dataclass(frozen=True)
class Spoken:
    """A text that was spoken: `sound` is a file of the corpus's format."""

    row: Row
    sound: bytes
    seconds: float
    sample_rate: int  # of that file, in Hz
    finish_reason: FinishReason | None

    def describe(self) -> dict[str, Any]:
        """Tell all but the sound."""
        return {
            "id": self.row.id,
            "text": self.row.text,
            "voice": self.row.voice,
            "seed": self.row.sampling.seed,
            "seconds": self.seconds,
            "sample_rate": self.sample_rate,
            "finish_reason": self.finish_reason,
            "sha256": hashlib.sha256(self.sound).hexdigest(),
        }


def write_shard(
    output: Output, shard: Shard, results: Sequence[Spoken | BadLine], layout: Layout, audio_format: AudioFormat
) -> Entry:
    """Write what became of a shard's lines, in their order, and give its entry. Raises `CorpusError`."""
    spoken = [result for result in results if isinstance(result, Spoken)]
    if layout == "parquet":
        name = f"{shard_name(shard.number)}.parquet"
        content = _parquet(spoken)
        output.write(name, content)
    else:
        named = {f"{result.row.number:09}.{audio_format}": result for result in spoken}
        lines = [json.dumps({"file_name": one, **result.describe()}) + "\n" for one, result in named.items()]
        name = f"{shard_name(shard.number)}/{METADATA}"
        content = "".join(lines).encode()
        sounds = {one: result.sound for one, result in named.items()}
        output.write_folder(shard_name(shard.number), {**sounds, METADATA: content})
    entry = Entry(
        shard=shard.number,
        texts=len(results),
        spoken=len(spoken),
        cut=sum(result.finish_reason == "length" for result in spoken),
        seconds=round(sum(result.seconds for result in spoken), 6),
        files={name: hashlib.sha256(content).hexdigest()},
        errors=[_error(result) for result in results if isinstance(result, BadLine)],
    )
    output.write(entry_name(shard.number), entry.to_bytes())
    return entry


def _error(bad: BadLine) -> dict[str, Any]:
    told = asdict(bad)
    del told["number"]
    return told


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
    # Sound does not shrink, and a dictionary of it would double the work.
    parquet.write_table(table, buffer, compression={"audio": "NONE"}, use_dictionary=False, row_group_size=_GROUP_ROWS)
    return buffer.getvalue()
