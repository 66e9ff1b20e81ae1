"""The README and the pages that it links are correct: code runs, links resolve."""

from __future__ import annotations

import json
import re
import shlex
import shutil
import sys
import warnings
from importlib.util import find_spec
from pathlib import Path

import boto3
import numpy as np
import pytest
import soundfile
import soxr
from moto import mock_aws

from container_room import running
from s1_mini import EngineConfig, ProductionTTSEngine
from s1_mini.audio.container import to_int16
from s1_mini.cli.app import run
from s1_mini.codecs.dac.config import read_dac_config
from s1_mini.families.qwen3.random import write_random
from s1_mini.weights.directory import DEFAULT_MODEL

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text(encoding="utf-8")


def blocks(language: str, text: str = README) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", text, re.DOTALL | re.MULTILINE)


RUN = ("README.md", "docs/python.md", "docs/checkpoints.md", "docs/voices.md")
CODE = [(page, code) for page in RUN for code in blocks("python", (ROOT / page).read_text(encoding="utf-8"))]


def section(title: str) -> str:
    """Return the text under a heading."""
    return README.partition(f"\n## {title}\n")[2].partition("\n## ")[0]


@pytest.fixture
def desk(tiny: Path, tone: np.ndarray, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A directory with the files that the README and its pages assume: checkpoints and a recording."""
    shutil.copytree(tiny, tmp_path / "openaudio-s1-mini")
    (tmp_path / "Qwen").mkdir()
    write_random(tmp_path / "Qwen" / "Qwen3-TTS-12Hz-0.6B-CustomVoice", size="tiny", form="published", seed=0)
    soundfile.write(tmp_path / "me.wav", tone, 44_100)
    shutil.copytree(ROOT / "tests" / "assets", tmp_path / "tests" / "assets")
    monkeypatch.setenv("S1_MINI_MAX_COLUMNS", "256")  # ends random models, which would not stop
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize(("page", "code"), CODE)
def test_python_blocks_run(page: str, code: str, desk: Path, capsys: pytest.CaptureFixture[str]) -> None:
    exec(compile(code, page, "exec"), {})

    said = capsys.readouterr().out
    rate = read_dac_config(DEFAULT_MODEL).sample_rate
    assert (f"samples at {rate}" in said) == ("samples at" in code)
    assert said or soundfile.info(desk / "morning.mp3").frames > 0


def test_the_first_python_is_four_lines_and_the_readme_is_short() -> None:
    assert len([line for line in blocks("python")[0].splitlines() if line]) <= 4
    assert len(README.split()) <= 1000


def commands(text: str) -> list[str]:
    return [it.removeprefix("$ ") for block in blocks("console", text) for it in block.splitlines() if it[:2] == "$ "]


def follow(
    command: str, desk: Path, monkeypatch: pytest.MonkeyPatch, capfdbinary: pytest.CaptureFixture[bytes]
) -> None:
    """Execute one console line."""
    words, _, target = command.partition(" > ")
    if words.startswith("export "):
        monkeypatch.setenv(*words.removeprefix("export ").split("=", 1))
        return
    monkeypatch.setattr(sys, "argv", shlex.split(words))
    capfdbinary.readouterr()

    assert run() == 0, (command, capfdbinary.readouterr().err.decode())

    if target:
        (desk / target).write_bytes(capfdbinary.readouterr().out)


SOUNDS = {
    "README.md": ["morning.wav", "clara.wav", "mine.mp3", "again.wav", "german.wav"],
    "docs/checkpoints.md": ["noise.wav"],
    "docs/voices.md": ["morning.wav"],
}


@pytest.mark.parametrize("page", SOUNDS)
def test_commands_run_in_order(
    page: str, desk: Path, monkeypatch: pytest.MonkeyPatch, capfdbinary: pytest.CaptureFixture[bytes]
) -> None:
    for command in commands((ROOT / page).read_text(encoding="utf-8").replace(section("Deploy it"), "")):
        follow(command, desk, monkeypatch, capfdbinary)

    for sound in SOUNDS[page]:
        assert soundfile.info(desk / sound).frames > 0
    if page == "README.md":
        assert (desk / "stream.wav").read_bytes().startswith(b"RIFF")
    if page == "docs/checkpoints.md":
        assert (desk / "compact" / "codec.safetensors").exists()


@pytest.mark.long
def test_the_commands_of_an_endpoint_run_in_order(
    desk: Path, tiny: Path, account: None, monkeypatch: pytest.MonkeyPatch, capfdbinary: pytest.CaptureFixture[bytes]
) -> None:
    """AWS is moto, which cannot invoke an endpoint: the container on a socket replaces it."""
    warnings.filterwarnings("ignore", "Tried to parse AWS::")  # moto's CloudFormation skips alarms and scaling
    monkeypatch.setenv("S1_MINI_AWS_INSTANCE_TYPE", "ml.g4dn.xlarge")  # a machine that moto supports
    with mock_aws(), ProductionTTSEngine(EngineConfig(checkpoint_path=tiny, device="cpu")) as engine:
        boto3.client("s3", "eu-west-1").create_bucket(
            Bucket="my-bucket", CreateBucketConfiguration={"LocationConstraint": "eu-west-1"}
        )
        with running(engine, desk / "store", endpoint="hello") as container:
            monkeypatch.setenv("AWS_ENDPOINT_URL_SAGEMAKER_RUNTIME", container.url)
            stood = []
            for command in commands(section("Deploy it")):
                if "--check" in command:
                    continue  # starts a process, as in tests/packaging/test_contract.py
                follow(command, desk, monkeypatch, capfdbinary)
                stood.append(len(boto3.client("sagemaker").list_endpoints()["Endpoints"]))

        assert sum(stood) == 3  # after create, autoscale and invoke; none before, none after delete
        assert stood[-1] == 0
        assert boto3.client("s3").head_object(Bucket="my-bucket", Key="1/model.tar.gz")["ContentLength"] > 0
    planned = json.loads((desk / "template.json").read_text())["Resources"]
    assert list(planned) == ["Model", "Config", "Rollback5xx", "RollbackLatency", "Endpoint"]
    assert soundfile.info(desk / "hello.wav").frames > 0


@pytest.mark.skipif(find_spec("pocketsphinx") is None, reason="pocketsphinx is missing: no wheel for this machine")
def test_the_transcript_of_the_sample_recording_is_correct() -> None:
    import pocketsphinx

    transcript = "The cat sat on the warm kitchen floor."
    wave, rate = soundfile.read(ROOT / "docs" / "voice" / "reference.wav", dtype="float32")
    decoder = pocketsphinx.Decoder(samprate=16_000, loglevel="FATAL")
    decoder.start_utt()
    decoder.process_raw(to_int16(soxr.resample(wave, rate, 16_000)).tobytes(), full_utt=True)
    decoder.end_utt()

    assert decoder.hyp().hypstr == transcript.removesuffix(".").lower()
    for page in ("README.md", "docs/http.md", "docs/python.md", "docs/voices.md", "notebooks/01_first_sentence.ipynb"):
        text = (ROOT / page).read_text(encoding="utf-8")
        assert "docs/voice/reference.wav" in text
        assert transcript in text
        assert "What I say there." not in text


def test_the_readme_installs_from_a_checkout_and_has_a_line_for_torch_without_cuda() -> None:
    """Not from PyPI, which does not have the package; in this order, so that torch's CPU build is kept."""
    lines = re.findall(r"^pip install .*$", section("Hear it"), re.MULTILINE)

    assert lines == ["pip install torch --index-url https://download.pytorch.org/whl/cpu", "pip install -e ."]
    pages = [ROOT / "README.md", *(ROOT / "docs").glob("*.md")]
    assert [page.name for page in pages if re.search(r'pip install "?s1-mini', page.read_text(encoding="utf-8"))] == []


FOLDERS = ("", "docs/", "docs/internals/", "infra/", "recipes/voice/")
PAGES = [path.relative_to(ROOT).as_posix() for folder in FOLDERS for path in ROOT.glob(f"{folder}*.md")]


@pytest.mark.parametrize("page", sorted(PAGES))
def test_links_to_files_lead_somewhere(page: str) -> None:
    targets = re.findall(r"\]\((?!https?:)([^)#]+)\)", (ROOT / page).read_text(encoding="utf-8"))

    assert [target for target in targets if not (ROOT / page).parent.joinpath(target).exists()] == []


def test_the_two_commands_that_need_nothing_installed_exist() -> None:
    assert re.findall(r"^python (\S+)", README, re.MULTILINE) == ["scripts/demo.py", "scripts/test.py"]
    assert all((ROOT / script).exists() for script in ("scripts/demo.py", "scripts/test.py", ".ci/run"))
