"""Voice files of other programs are read within bounds, and never executed."""

from __future__ import annotations

import io
import struct
import tracemalloc
import zipfile
from collections.abc import Callable

import numpy as np
import pytest

from s1_mini.voices.arrays import is_array_file, read_arrays


def saved(save: Callable[..., None], *arrays: np.ndarray, **named: np.ndarray) -> bytes:
    file = io.BytesIO()
    save(file, *arrays, **named)
    return file.getvalue()


def bomb(method: int, stated_bytes: int) -> bytes:
    """An archive of 16 MiB of zeros whose directory states another size."""
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", method) as archive:
        archive.writestr("a.npy", bytes(2**24))
    content = bytearray(file.getvalue())
    struct.pack_into("<I", content, content.rfind(b"PK\x01\x02") + 24, stated_bytes)
    return bytes(content)


def promising(length: int) -> bytes:
    """An array of one number whose header states another length."""
    file = io.BytesIO()
    np.lib.format.write_array_header_1_0(file, {"descr": "<f8", "fortran_order": False, "shape": (length,)})
    return file.getvalue() + bytes(8)


def packed() -> bytes:
    """An archive with damaged compressed bytes, and correct offsets and lengths."""
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("a.npy", saved(np.save, np.arange(999)))
    content, start = bytearray(file.getvalue()), 30 + len("a.npy")
    content[start + 20 : start + 84] = b"\xff" * 64
    return bytes(content)


# Created by the test that reads them: every process of pytest imports this module.
WRONG: dict[str, tuple[Callable[[], bytes], str]] = {
    "pickled objects": (lambda: saved(np.save, np.array([{"a": 1}], dtype=object)), "object, not numbers"),
    "letters": (lambda: saved(np.save, np.array(["a"])), "not numbers"),
    "an archive that unpacks to much": (lambda: bomb(zipfile.ZIP_DEFLATED, 2**24), "more than 16 arrays, or"),
    "an archive of deflate that states a false size": (lambda: bomb(zipfile.ZIP_DEFLATED, 100), "damaged"),
    "an archive of bzip2 that states a false size": (lambda: bomb(zipfile.ZIP_BZIP2, 100), "method 12"),
    "an archive of lzma that states a false size": (lambda: bomb(zipfile.ZIP_LZMA, 100), "method 14"),
    "a file that is too large": (lambda: saved(np.save, np.zeros(2**18 + 1)), "limit for a voice.* is 2,097,152"),
    "a header that promises much": (lambda: promising(2**40), "its shape"),
    "a header that promises more than follows": (lambda: promising(2**20), "its shape"),
    "a header with a length below 0": (lambda: promising(-1), "its shape"),
    "too many arrays": (lambda: saved(np.savez, **{f"a{i}": np.zeros(1) for i in range(17)}), "more than 16 arrays"),
    "an archive that is cut": (lambda: saved(np.savez, a=np.zeros(9))[:80], "damaged"),
    "an archive of damaged deflate": (packed, "damaged"),
    "a header that does not end": (lambda: saved(np.save, np.zeros(9)).replace(b"(9,)", b"(9, "), "damaged"),
    "an array that is cut": (lambda: saved(np.save, np.zeros(9))[:-8], "."),
}


def test_arrays_are_read_by_name() -> None:
    several, one = saved(np.savez, a=np.arange(3), b=np.ones((2, 2))), saved(np.save, np.arange(4.0))

    assert is_array_file(several)
    assert is_array_file(one)
    assert not is_array_file(b"RIFF....WAVE")
    assert {name: array.tolist() for name, array in read_arrays(several).items()} == {
        "a": [0, 1, 2],
        "b": [[1, 1], [1, 1]],
    }
    assert read_arrays(one)[""].tolist() == [0, 1, 2, 3]


def test_arrays_of_every_order_and_shape_are_read() -> None:
    for array in (np.arange(6.0).reshape(2, 3), np.asfortranarray(np.arange(6).reshape(2, 3)), np.zeros((0, 4))):
        (read,) = read_arrays(saved(np.savez_compressed, array)).values()

        assert read.dtype == array.dtype
        assert read.tolist() == array.tolist()
        assert read.shape == array.shape


@pytest.mark.parametrize(("create", "complaint"), WRONG.values(), ids=WRONG)
def test_an_invalid_file_is_refused_within_a_few_megabytes_of_memory(
    create: Callable[[], bytes], complaint: str
) -> None:
    data = create()
    tracemalloc.start()
    try:
        with pytest.raises(ValueError, match=complaint):
            read_arrays(data)
        assert tracemalloc.get_traced_memory()[1] < 10e6
    finally:
        tracemalloc.stop()
