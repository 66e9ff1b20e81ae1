"""The notebooks are committed without output, call only the package, run completely, and produce audio and plots."""

from __future__ import annotations

import ast
import base64
import io
import json
import os
import re
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import soundfile

from waiting import EVENTUALLY_S

ROOT = Path(__file__).parents[2]
BOOKS = sorted((ROOT / "notebooks").glob("*.ipynb"))
VOICES = len(list((ROOT / "src" / "s1_mini" / "default_model" / "voices").iterdir()))
SOUNDS = {"01_first_sentence": 5 + VOICES, "02_batching_and_latency": 0, "03_deploy_to_sagemaker": 2}
PICTURES = {"01_first_sentence": 3, "02_batching_and_latency": 3, "03_deploy_to_sagemaker": 1}

# Runs first in every Python that a notebook starts: a non-local address is recorded and refused.
FENCE = """
import os, sys

def fence(event, given):
    if event not in ("socket.connect", "socket.getaddrinfo", "socket.gethostbyname"):
        return
    host = given[0] if event != "socket.connect" else given[1][0] if isinstance(given[1], tuple) else None
    host = host.decode() if isinstance(host, bytes) else host
    if host not in (None, "", "localhost", "::1", "0.0.0.0") and not host.startswith("127."):
        with open(os.environ["FENCE_LOG"], "a") as log:
            print(event, host, file=log)
        raise OSError(f"{host} is beyond this machine")

sys.addaudithook(fence)
"""


def read(path: Path) -> Any:
    import nbformat  # these packages take seconds to import

    return nbformat.read(path, as_version=4)


@pytest.fixture
def desk(tmp_path: Path) -> Path:
    """A working directory, with the files that the notebooks find next to them in the checkout."""
    shutil.copytree(ROOT / "docs" / "voice", tmp_path / "docs" / "voice")
    (tmp_path / "notebooks").mkdir()
    (tmp_path / "fence").mkdir()
    (tmp_path / "fence" / "sitecustomize.py").write_text(FENCE, encoding="utf-8")
    return tmp_path


@pytest.fixture
def environment(desk: Path) -> dict[str, str]:
    """Environment variables of a fresh installation: no settings, no credentials, no files of this machine."""
    ours = ("AWS_", "S1_MINI_", "JUPYTER_", "IPYTHON", "PYTEST_", "MPLBACKEND", "PYTHONWARNINGS")
    kept = {name: value for name, value in os.environ.items() if not name.startswith(ours)}
    return kept | {
        "AWS_ACCESS_KEY_ID": "testing",
        "AWS_SECRET_ACCESS_KEY": "testing",
        "AWS_CONFIG_FILE": str(desk / "aws"),
        "AWS_SHARED_CREDENTIALS_FILE": str(desk / "aws"),
        "AWS_EC2_METADATA_DISABLED": "true",
        "FENCE_LOG": str(desk / "fence.log"),
        "IPYTHONDIR": str(desk / "ipython"),
        "MPLCONFIGDIR": str(desk / "matplotlib"),
        "NO_PROXY": "127.0.0.1,localhost",
        "OMP_WAIT_POLICY": "PASSIVE",
        "PYTHONPATH": os.pathsep.join([str(desk / "fence"), str(ROOT / "src")]),
        "PYTHONUTF8": "1",
    }


@pytest.fixture
def kernels(desk: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A directory for Jupyter kernels that hides this machine's own."""
    monkeypatch.setenv("JUPYTER_DATA_DIR", str(desk / "jupyter"))
    monkeypatch.setenv("JUPYTER_RUNTIME_DIR", str(desk / "runtime"))
    monkeypatch.setenv("JUPYTER_PATH", "")
    return desk / "jupyter" / "kernels"


def execute(book: Any, desk: Path, environment: dict[str, str], python: str, kernels: Path) -> Any:
    """Run all cells in a new kernel of `python`; raise if one fails."""
    from nbclient import NotebookClient

    kernel = kernels / "ours" / "kernel.json"
    kernel.parent.mkdir(parents=True)
    start = [python, "-m", "ipykernel_launcher", "-f", "{connection_file}"]
    kernel.write_text(json.dumps({"argv": start, "display_name": "ours", "language": "python"}), encoding="utf-8")
    resources = {"metadata": {"path": str(desk / "notebooks")}}
    NotebookClient(book, timeout=EVENTUALLY_S, kernel_name="ours", resources=resources).execute(env=environment)
    return book


def outputs(book: Any, kind: str) -> Iterator[Any]:
    """Return the cells' outputs of one MIME type, in order."""
    for cell in book.cells:
        for output in cell.get("outputs", []):
            if kind in output.get("data", {}):
                yield output["data"][kind]


def streams(book: Any, name: str) -> str:
    """Return everything printed to one stream."""
    made = [output for cell in book.cells for output in cell.get("outputs", []) if output.get("name") == name]
    return "".join(output["text"] for output in made)


def check_sounds(book: Any, count: int) -> None:
    """Check that there are `count` audio players, and that none plays silence."""
    players = [page for page in outputs(book, "text/html") if "<audio" in page]
    assert len(players) == count
    for page in players:
        (data,) = re.findall(r'src="data:audio/\S*;base64,([^"]+)"', page)
        wave, rate = soundfile.read(io.BytesIO(base64.b64decode(data)))
        assert len(wave) > 0.3 * rate
        assert np.abs(wave).max() > 0.05


def check_pictures(book: Any, count: int) -> None:
    """Check that there are `count` pictures, and that none is blank."""
    import matplotlib.image

    pictures = [matplotlib.image.imread(io.BytesIO(base64.b64decode(data))) for data in outputs(book, "image/png")]
    assert len(pictures) == count
    for picture in pictures:
        assert picture.shape[1] > 600
        assert picture[..., :3].std() > 0.05


@pytest.mark.parametrize("path", BOOKS, ids=lambda path: path.stem)
def test_a_notebook_is_committed_without_output(path: Path) -> None:
    import nbformat

    book = read(path)
    nbformat.validate(book)
    cells = [cell for cell in book.cells if cell.cell_type == "code"]

    assert [cell.source for cell in cells if cell.outputs or cell.execution_count is not None] == []
    assert set(book.metadata) == {"kernelspec", "language_info"}


def test_the_install_line_of_the_readme_brings_every_package_that_the_notebooks_need() -> None:
    from IPython.core.inputtransformer2 import TransformerManager

    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    (line,) = re.findall(r"^pip install .*jupyterlab.*$", readme, re.MULTILINE)
    extras = re.findall(r"\[([a-z,]+)\]\"? jupyterlab", line)[0].split(",")
    files = ["requirements.txt", *(f"requirements-{extra}.txt" for extra in extras)]
    listed = "\n".join((ROOT / file).read_text(encoding="utf-8") for file in files)
    installed = (
        set(re.findall(r"^[\w-]+", listed, re.MULTILINE)) | set(line.split()[2:]) | {"ipython", "moto", "s1-mini"}
    )
    python = TransformerManager()
    code = "\n".join(
        python.transform_cell(cell.source) for path in BOOKS for cell in read(path).cells if cell.cell_type == "code"
    )
    tree = [node for node in ast.walk(ast.parse(code)) if isinstance(node, ast.Import | ast.ImportFrom)]
    imported = {getattr(node, "module", None) or node.names[0].name for node in tree}
    packages = {name.partition(".")[0].lower().replace("_", "-") for name in imported} - {"sagemaker"}  # optional

    assert {"boto3", "moto"} <= packages
    assert packages - set(sys.stdlib_module_names) - installed == set()
    assert '"moto[server]"' in line
    assert {"server", "aws"} <= set(extras)  # `s1-mini serve` and `s1-mini endpoint`


@pytest.mark.parametrize("path", BOOKS, ids=lambda path: path.stem)
def test_the_links_of_a_notebook_lead_somewhere(path: Path) -> None:
    text = "\n".join(cell.source for cell in read(path).cells if cell.cell_type == "markdown")
    targets = re.findall(r"\]\((?!https?:)([^)#]+)\)", text)

    assert targets
    assert [target for target in targets if not (path.parent / target).exists()] == []


@pytest.mark.long
@pytest.mark.filterwarnings("ignore:Proactor event loop")  # zmq on Windows
@pytest.mark.parametrize("path", BOOKS, ids=lambda path: path.stem)
def test_a_notebook_runs_with_no_network_and_shows_and_plays_what_it_made(
    path: Path, desk: Path, environment: dict[str, str], kernels: Path
) -> None:
    book = execute(read(path), desk, environment, sys.executable, kernels)

    check_sounds(book, SOUNDS[path.stem])
    check_pictures(book, PICTURES[path.stem])
    assert streams(book, "stderr") == ""
    assert not (desk / "fence.log").exists(), (desk / "fence.log").read_text(encoding="utf-8")


@pytest.mark.sdk
@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:Proactor event loop")
def test_the_sdks_cells_ask_the_endpoint_and_make_and_remove_a_config(
    desk: Path, environment: dict[str, str], kernels: Path, sdk_python: Path
) -> None:
    book = read(ROOT / "notebooks" / "03_deploy_to_sagemaker.ipynb")
    book = execute(book, desk, environment, str(sdk_python), kernels)

    check_sounds(book, SOUNDS["03_deploy_to_sagemaker"] + 1)
    assert "endpoint-config/captured s1-mini-demo-Model-" in streams(book, "stdout")
    assert not (desk / "fence.log").exists(), (desk / "fence.log").read_text(encoding="utf-8")
