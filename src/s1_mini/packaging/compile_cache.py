"""Code that torch, Triton and numba compiled, for machines with the same GPU generation and torch version.

A cache is code: write access to an artifact allows running code on every machine that loads it.
"""

from __future__ import annotations

import logging
import os
import re
import shutil
from pathlib import Path

import torch

from s1_mini.exceptions import PackageError
from s1_mini.files import temporary_folder

logger = logging.getLogger(__name__)

FOLDER = "compile_cache"
VARIABLES = {  # variable: subfolder of the cache
    "TORCHINDUCTOR_CACHE_DIR": "inductor",
    "TRITON_CACHE_DIR": "triton",
    "NUMBA_CACHE_DIR": "numba",
}
KEY = re.compile(r"(sm_\d{2,3}[a-z]?|cpu)-torch\d+\.\d+\.\d+[a-z0-9.]*")


def cache_key() -> str:
    """Return the key of this machine's caches, GPU generation and torch version, such as `sm_90-torch2.13.0`."""
    arch = "cpu"
    if torch.cuda.is_available():
        major, minor = torch.cuda.get_device_capability()
        arch = f"sm_{major}{minor}"
    return f"{arch}-torch{torch.__version__.partition('+')[0]}"


def is_cache(directory: Path) -> bool:
    """Return whether a folder is a compile cache with content."""
    return any((directory / part).is_dir() for part in VARIABLES.values())


def keep_cache(directory: Path) -> None:
    """Set the folder for all kernels compiled from now on; variables that are already set are kept."""
    for variable, part in VARIABLES.items():
        if not os.environ.get(variable):
            os.environ[variable] = str(directory.absolute() / part)


def use_cache(directory: Path) -> Path | None:
    """Use the cache for this GPU and torch from an unpacked artifact, if the artifact has one.

    The process uses a copy, because compilers write into a cache and an artifact must not change. A cache set by an
    environment variable takes precedence. Raises `PackageError` if the cache cannot be copied.
    """
    source = directory / FOLDER / cache_key()
    if not is_cache(source):
        return None
    if named := [variable for variable in VARIABLES if os.environ.get(variable)]:
        logger.info("compile cache %s is not used: %s names a different one", source.name, named[0])
        return None
    try:
        target = temporary_folder("s1-mini-compiled-")
        shutil.copytree(source, target, dirs_exist_ok=True)
    except OSError as error:
        raise PackageError(f"the compile cache {source.name} cannot be copied: {error}") from None
    keep_cache(target)
    logger.info("compile cache %s is used", source.name)
    return target
