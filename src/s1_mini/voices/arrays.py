"""Voice files of other programs: numpy's .npz and .npy, read without pickle and within bounds.

Sizes are checked before anything is unpacked or allocated, and no size stated in a file is trusted, because an archive
of 1,380 bytes may unpack to 3 GB.
"""

from __future__ import annotations

import io
import math
import zipfile

import numpy as np

MAX_ARRAYS = 16
MAX_FILE_BYTES = 2 * 2**20  # also bounds the list of members of an archive, which zipfile reads first
MAX_BYTES = 4 * 2**20  # limit for all unpacked arrays; a voice takes tens of kilobytes
_MAGIC = (b"PK\x03\x04", b"\x93NUMPY")
_METHODS = (
    zipfile.ZIP_STORED,
    zipfile.ZIP_DEFLATED,
)  # the methods that numpy writes; zipfile cannot limit the size of others


def is_array_file(data: bytes) -> bool:
    return data.startswith(_MAGIC)


def read_arrays(data: bytes) -> dict[str, np.ndarray]:
    """Read the arrays of a .npz by their names, or the array of a .npy under "". Raises `ValueError`."""
    if len(data) > MAX_FILE_BYTES:
        raise ValueError(f"it is {len(data):,} bytes; the limit for a voice file is {MAX_FILE_BYTES:,}")
    try:
        if not data.startswith(_MAGIC[0]):
            return {"": _read(data)}
        return _unpack(data)
    except ValueError:
        raise
    except Exception as error:  # each compression method, and the header parser, has its own errors
        raise ValueError(f"it is damaged: {error}") from None


def _unpack(data: bytes) -> dict[str, np.ndarray]:
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        members = archive.infolist()
        if len(members) > MAX_ARRAYS or sum(member.file_size for member in members) > MAX_BYTES:
            raise ValueError(f"it has more than {MAX_ARRAYS} arrays, or more than {MAX_BYTES:,} bytes when unpacked")
        return {member.filename.removesuffix(".npy"): _read(_read_member(archive, member)) for member in members}


def _read_member(archive: zipfile.ZipFile, member: zipfile.ZipInfo) -> bytes:
    if member.compress_type not in _METHODS:
        raise ValueError(
            f"it uses compression method {member.compress_type}; save it with numpy.savez or savez_compressed"
        )
    with archive.open(member) as file:
        return file.read(member.file_size)  # unpacks at most `file_size` bytes, unlike `archive.read`


def _read(data: bytes) -> np.ndarray:
    file = io.BytesIO(data)
    version = np.lib.format.read_magic(file)
    if version not in ((1, 0), (2, 0)):
        raise ValueError(f"it uses version {version[0]} of numpy's format; 1 and 2 are supported")
    read_header = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
    shape, is_fortran, dtype = read_header(file)
    if dtype.hasobject or dtype.kind not in "iuf":
        raise ValueError(f"it contains {dtype}, not numbers")
    if len(shape) > 4 or any(length < 0 for length in shape):
        raise ValueError(f"its shape {list(shape)} is not supported; at most 4 dimensions are allowed")
    if math.prod(shape) * dtype.itemsize != len(data) - file.tell():  # before numpy allocates the array
        raise ValueError(f"its shape {list(shape)} of {dtype} does not match its {len(data) - file.tell():,} bytes")
    is_empty = not math.prod(shape)
    array = np.empty(0, dtype) if is_empty else np.frombuffer(bytearray(data), dtype, offset=file.tell())  # writable
    return array.reshape(shape, order="F" if is_fortran else "C")
