"""Set the long description: the README with absolute links. All other metadata is in setup.cfg."""

import configparser
import re
from pathlib import Path

from setuptools import setup

ROOT = Path(__file__).parent


def long_description() -> str:
    """Return the README with absolute links to the files of this release."""
    config = configparser.ConfigParser()
    config.read(ROOT / "setup.cfg", encoding="utf-8")
    version = re.search(r'__version__ = "(.+)"', (ROOT / "src/s1_mini/version.py").read_text(encoding="utf-8"))[1]
    files = f"{config['metadata']['url']}/blob/v{version}/"
    return re.sub(r"\]\((?!https?:|#)", f"]({files}", (ROOT / "README.md").read_text(encoding="utf-8"))


setup(long_description=long_description(), long_description_content_type="text/markdown")
