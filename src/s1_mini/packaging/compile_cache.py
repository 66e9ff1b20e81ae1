"""What torch compiled on one machine, taken along for others with the same GPU and the same torch, and no others.

A cache is code: whoever may write an artifact may run things where it is loaded. It is the artifact's maker's own.
"""

from __future__ import annotations

import logging
import os
import re
import shutil
import tempfile
from pathlib import Path

import torch

from s1_mini.exceptions import PackageError

logger = logging.getLogger(__name__)

FOLDER = "compile_cache"
VARIABLE = "TORCHINDUCTOR_CACHE_DIR"
KEY = re.compile(r"(sm_\d{2,3}[a-z]?|cpu)-torch\d+\.\d+\.\d+[a-z0-9.]*")


def cache_key() -> str:
    """Give the key of this machine's caches: GPU generation and torch, `sm_90-torch2.13.0`."""
    arch = "cpu"
    if torch.cuda.is_available():
        major, minor = torch.cuda.get_device_capability()
        arch = f"sm_{major}{minor}"
    return f"{arch}-torch{torch.__version__.partition('+')[0]}"


def use_cache(directory: Path) -> Path | None:
    """Let torch use the cache in an unpacked artifact that was made for this GPU and this torch, if there is one.

    It is copied first: torch writes into its cache, and an artifact stays as it is. A cache that is named already
    stays. Raises `PackageError` if it cannot be copied.
    """
    source = directory / FOLDER / cache_key() if (directory / FOLDER).is_dir() else None
    if source is None or not source.is_dir() or os.environ.get(VARIABLE):
        return None
    try:
        target = Path(tempfile.mkdtemp(prefix="s1-mini-compiled-"))
        shutil.copytree(source, target, dirs_exist_ok=True)
    except OSError as error:
        raise PackageError(f"the compile cache {source.name} cannot be copied: {error}") from None
    os.environ[VARIABLE] = str(target)
    logger.info("compile cache %s is used", source.name)
    return target
