"""Voice files of other programs: numpy's .npz and .npy, read without pickle and within bounds."""

from __future__ import annotations

import io
import zipfile

import numpy as np

MAX_ARRAYS = 16
MAX_BYTES = 16 * 2**20  # of all arrays; a voice takes some tens of kilobytes
_MAGIC = (b"PK\x03\x04", b"\x93NUMPY")


def is_array_file(data: bytes) -> bool:
    """Tell whether the bytes begin as numpy's files do; no recording does."""
    return data.startswith(_MAGIC)


def read_arrays(data: bytes) -> dict[str, np.ndarray]:
    """Read the arrays of a .npz by their names, or that of a .npy under the empty one. Raises `ValueError`."""
    try:
        if not data.startswith(_MAGIC[0]):
            return {"": _read(data)}
        return _unpack(data)
    except ValueError:
        raise
    except Exception as error:  # each way of packing has errors of its own, and so has the reader of a header
        raise ValueError(f"it is damaged: {error}") from None


def _unpack(data: bytes) -> dict[str, np.ndarray]:
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        members = archive.infolist()
        if len(members) > MAX_ARRAYS or sum(member.file_size for member in members) > MAX_BYTES:
            raise ValueError(f"it holds more than {MAX_ARRAYS} arrays or {MAX_BYTES} bytes")
        return {member.filename.removesuffix(".npy"): _read(archive.read(member)) for member in members}


def _read(data: bytes) -> np.ndarray:
    if len(data) > MAX_BYTES:
        raise ValueError(f"it holds more than {MAX_BYTES} bytes")
    file = io.BytesIO(data)
    version = np.lib.format.read_magic(file)
    if version not in ((1, 0), (2, 0)):
        raise ValueError(f"it is of the version {version[0]} of numpy's form; 1 and 2 are read")
    read_header = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
    shape, _, dtype = read_header(file)
    if dtype.hasobject or dtype.kind not in "iuf":
        raise ValueError(f"it holds {dtype}, not numbers")
    if len(shape) > 4 or any(length > MAX_BYTES for length in shape) or np.prod(shape, dtype=float) > MAX_BYTES:
        raise ValueError(f"it has the shape {list(shape)}")
    file.seek(0)
    array: np.ndarray = np.lib.format.read_array(file, allow_pickle=False)
    return array
