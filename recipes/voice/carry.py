"""Carry encoded utterances from a machine that forgets them to the next one: ten bits a code, 1.6 kbit a second.

python -m recipes.voice.carry pack --tokens DIR --output DIR [--megabytes 15]
python -m recipes.voice.carry unpack --input DIR --work DIR

`pack` writes `codes_000.bin` and so on, each readable alone, of the shards that `tokens.py` wrote. `unpack` writes
those shards again, to `DIR/tokens`.
"""

from __future__ import annotations

import argparse
import io
import json
import lzma
import struct
from collections.abc import Iterable, Iterator
from pathlib import Path

import numpy as np

from recipes.voice.corpus import PIECES, Coded, as_segments, write_vocabulary
from s1_mini.families.s1.prompt import SPEAKER
from s1_mini.families.s1.tokenizer import S1Tokenizer

BITS = 10
# Shards are not told apart by their numbers alone: those that were unpacked begin so.
PREFIX = "shard_carried"


def packed(utterances: list[Coded]) -> bytes:
    """Write utterances of one number of codebooks, one after another."""
    codes = np.concatenate([frames for _, _, frames in utterances], axis=1)
    bits = (codes.T.reshape(-1, 1) >> np.arange(BITS)) & 1
    told = {
        "books": len(codes),
        "speakers": [who for who, _, _ in utterances],
        "texts": [text for _, text, _ in utterances],
        "frames": [frames.shape[1] for _, _, frames in utterances],
    }
    head = lzma.compress(json.dumps(told, ensure_ascii=False).encode())
    return struct.pack("<Q", len(head)) + head + np.packbits(bits.astype(bool)).tobytes()


def unpacked(content: bytes) -> list[Coded]:
    """Read what `packed` wrote."""
    length = struct.unpack("<Q", content[:8])[0]
    told = json.loads(lzma.decompress(content[8 : 8 + length]))
    count = sum(told["frames"]) * told["books"]
    bits = np.unpackbits(np.frombuffer(content, np.uint8, offset=8 + length), count=count * BITS).reshape(-1, BITS)
    codes = (bits.astype(np.int16) << np.arange(BITS, dtype=np.int16)).sum(1, dtype=np.int16)
    whole = codes.reshape(-1, told["books"]).T
    pieces = np.split(whole, np.cumsum(told["frames"])[:-1], axis=1)
    return [Coded(*one) for one in zip(told["speakers"], told["texts"], pieces, strict=True)]


def read_shard(path: Path, tokenizer: S1Tokenizer) -> list[Coded]:
    """Read a shard of `tokens.py`."""
    with np.load(path) as shard:
        mains = np.split(shard["main"], np.cumsum(shard["lengths"])[:-1])
        codes = np.split(shard["codes"], np.cumsum(shard["lengths"])[:-1], axis=1)
        speakers = shard["speaker"].tolist()
    tag, first, last = len(tokenizer.encode(SPEAKER)), tokenizer.semantic_begin, tokenizer.semantic_end
    read: list[Coded] = []
    for who, main, columns in zip(speakers, mains, codes, strict=True):
        spoken = (main >= first) & (main <= last)
        text = b"".join(PIECES[token] for token in main[tag : int(spoken.argmax())].tolist())
        read.append(Coded(who, text.decode(), columns[:, spoken]))
    return read


def pack(folder: Path, output: Path, megabytes: float) -> int:
    """Pack all shards but what is held back, or was carried here, into files of so many megabytes; give how many."""
    output.mkdir(parents=True, exist_ok=True)
    write_vocabulary(output)
    tokenizer, count = S1Tokenizer.from_directory(output), 0
    for pieces in _files((packed(read_shard(path, tokenizer)) for path in _shards(folder)), megabytes * 1e6):
        temporary = output / "codes.tmp"
        np.savez(whole := io.BytesIO(), *[np.frombuffer(piece, np.uint8) for piece in pieces])
        temporary.write_bytes(whole.getvalue())
        temporary.replace(output / f"codes_{count:03d}.bin")
        count += 1
    return count


def _shards(folder: Path) -> list[Path]:
    return [
        path
        for path in sorted(folder.glob("shard_*.npz"))
        if "held" not in path.name and not path.name.startswith(PREFIX)
    ]


def _files(pieces: Iterable[bytes], most: float) -> Iterator[list[bytes]]:
    together: list[bytes] = []
    for piece in pieces:
        if together and sum(map(len, together)) + len(piece) > most:
            yield together
            together = []
        together.append(piece)
    if together:
        yield together


def unpack(folder: Path, work: Path) -> int:
    """Write shards again; give how many."""
    (work / "tokens").mkdir(parents=True, exist_ok=True)
    write_vocabulary(work)
    tokenizer, count = S1Tokenizer.from_directory(work), 0
    for path in sorted(folder.glob("codes_*.bin")):
        with np.load(path) as pieces:
            for name in pieces.files:
                target = work / "tokens" / f"{PREFIX}_{count:05d}.npz"
                np.savez(target, **as_segments(unpacked(pieces[name].tobytes()), tokenizer))
                count += 1
    return count


def main() -> None:
    """Pack or unpack."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("verb", choices=("pack", "unpack"))
    parser.add_argument("--tokens", type=Path)
    parser.add_argument("--output", type=Path)
    parser.add_argument("--input", type=Path)
    parser.add_argument("--work", type=Path)
    parser.add_argument("--megabytes", type=float, default=15.0)
    options = parser.parse_args()
    if options.verb == "pack":
        print(pack(options.tokens, options.output, options.megabytes))
    else:
        print(unpack(options.input, options.work))


if __name__ == "__main__":
    main()
