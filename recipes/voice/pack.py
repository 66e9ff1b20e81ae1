"""Carry the teacher to a machine without a network, in 59 MB: large floats as half precision, compressed.

python -m recipes.voice.pack write --teacher DIR --output FILE     (here; a minute)
python -m recipes.voice.pack read --input FILE --teacher DIR       (there; five seconds)

`--teacher` is what `packages.py` wrote; of it the model, the vocabulary and the style tables are carried. Tables have a
row for every count of phonemes, but change slowly, so every tenth is carried and the rest is interpolated.
"""

from __future__ import annotations

import argparse
import io
import lzma
from pathlib import Path
from typing import Any

import numpy as np

LARGE = 1000  # numbers of a tensor; larger ones leave the graph, and are halved if they are floats
ROWS = np.unique(np.r_[0:40:4, 40:510:10, 509])
STYLE_ROWS, STYLE_SIZE = 510, 256


def write(teacher: Path, output: Path) -> None:
    """Pack what `teacher` holds."""
    import onnx

    graph = onnx.load(str(teacher / "model.onnx"))
    arrays: dict[str, Any] = {}
    for tensor in graph.graph.initializer:
        array = onnx.numpy_helper.to_array(tensor)
        if array.size >= LARGE:
            arrays[f"tensor/{tensor.name}"] = array.astype(np.float16) if array.dtype == np.float32 else array
            for field in ("raw_data", "float_data", "int32_data", "int64_data"):
                tensor.ClearField(field)
    for file in sorted((teacher / "voices").glob("*.bin")):
        table = np.fromfile(file, np.float32).reshape(STYLE_ROWS, STYLE_SIZE)
        arrays[f"voice/{file.stem}"] = table[ROWS].astype(np.float16)
    arrays["graph"] = np.frombuffer(graph.SerializeToString(), np.uint8)
    arrays["vocabulary"] = np.frombuffer((teacher / "vocab.json").read_bytes(), np.uint8)
    packed = io.BytesIO()
    np.savez(packed, **arrays)
    output.write_bytes(lzma.compress(packed.getvalue(), preset=2))


def read(packed: Path, teacher: Path) -> None:
    """Unpack into `teacher`, so that `Teacher` and `Styles` find what they want."""
    import onnx

    (teacher / "voices").mkdir(parents=True, exist_ok=True)
    arrays = np.load(io.BytesIO(lzma.decompress(packed.read_bytes())))
    graph = onnx.load_from_string(arrays["graph"].tobytes())
    for tensor in graph.graph.initializer:
        if f"tensor/{tensor.name}" in arrays:
            wanted = onnx.helper.tensor_dtype_to_np_dtype(tensor.data_type)
            array = arrays[f"tensor/{tensor.name}"].astype(wanted)
            tensor.CopyFrom(onnx.numpy_helper.from_array(array, tensor.name))
    onnx.save(graph, str(teacher / "model.onnx"))
    (teacher / "vocab.json").write_bytes(arrays["vocabulary"].tobytes())
    every = np.arange(STYLE_ROWS)
    for name in arrays.files:
        if name.startswith("voice/"):
            kept = arrays[name].astype(np.float32)
            table = np.stack([np.interp(every, ROWS, column) for column in kept.T], axis=1).astype(np.float32)
            table.tofile(teacher / "voices" / f"{name.removeprefix('voice/')}.bin")


def main() -> None:
    """Pack or unpack."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("verb", choices=("write", "read"))
    parser.add_argument("--teacher", type=Path, required=True)
    parser.add_argument("--output", type=Path)
    parser.add_argument("--input", type=Path)
    options = parser.parse_args()
    if options.verb == "write":
        write(options.teacher, options.output)
    else:
        read(options.input, options.teacher)


if __name__ == "__main__":
    main()
