"""Checkpoints by name from the hub, with its real library and a stand-in for its server."""

from __future__ import annotations

import importlib
import io
import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from pathlib import Path
from typing import Literal

import pytest

from hub_server import TOKEN, Hub, Repository, files_of, running_hub
from s1_mini import EngineConfig, ProductionTTSEngine
from s1_mini.cli.app import run
from s1_mini.exceptions import CheckpointFileError, S1MiniError
from s1_mini.families.find import find_checkpoint
from s1_mini.families.registry import SHORT_NAMES, get_family
from s1_mini.weights.hub import HubName, Origin, hub_name, origin_of

pytestmark = pytest.mark.slow

NAME = "owner/tiny-voice"
CARD = b"---\nlicense: cc-by-nc-sa-4.0\ntags: [text-to-speech]\n---\n# A voice\n"
NOISE = {"modeling.py": b"raise SystemExit\n", "voices/hook.py": b"raise SystemExit\n", "demo.mp4": b"film"}

FIND = """
import logging, sys
from pathlib import Path
from s1_mini.families.find import find_checkpoint

logging.basicConfig(level="INFO", format="%(message)s")
print(find_checkpoint(Path(sys.argv[1])).directory)
assert "torch" not in sys.modules
"""


@pytest.fixture
def hub() -> Iterator[Hub]:
    with running_hub() as hub:
        yield hub


@pytest.fixture
def repository(hub: Hub, published: Path) -> Repository:
    """A published checkpoint, with unneeded files."""
    hub.repositories[NAME] = Repository()
    hub.repositories[NAME].commit({**files_of(published), **NOISE, "README.md": CARD})
    return hub.repositories[NAME]


def publish(
    hub: Hub, folder: Path, family: str, form: Literal["published", "compact"] = "published", name: str = NAME
) -> dict[str, bytes]:
    """Publish a random checkpoint of a family on the hub, with unneeded files; return the needed files."""
    found = get_family(family)
    found.write_random(folder, size=next(iter(found.random_sizes)), form=form, seed=0)
    files = files_of(folder)
    hub.repositories[name] = Repository()
    hub.repositories[name].commit({**files, **NOISE, "README.md": CARD})
    return files


def variables(hub: Hub, folder: Path, **more: str) -> dict[str, str]:
    return {"HF_ENDPOINT": hub.url, "HF_HOME": str(folder / "hf"), **more}


@contextmanager
def hub_library(**values: str) -> Iterator[None]:
    """Set the library's variables. It reads them when it imports `constants`, whose attributes it uses in each call."""
    with pytest.MonkeyPatch.context() as patch:
        for name in [name for name in os.environ if name.startswith(("HF_", "S1_MINI_"))]:
            patch.delenv(name)
        for name, value in values.items():
            patch.setenv(name, value)
        try:
            reload_constants()
            yield
        finally:
            patch.undo()
            reload_constants()


def reload_constants() -> None:
    if constants := sys.modules.get("huggingface_hub.constants"):
        importlib.reload(constants)


def run_here(*words: str | Path) -> tuple[int, str, str]:
    """Return exit code, output and errors of a command."""
    with (
        pytest.MonkeyPatch.context() as patch,
        redirect_stdout(io.StringIO()) as out,
        redirect_stderr(io.StringIO()) as err,
    ):
        patch.setattr(sys, "argv", ["s1-mini", *map(str, words)])
        return run(), out.getvalue(), err.getvalue()


@pytest.fixture
def find(hub: Hub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Path]:
    """Resolve a name, in a directory and with a cache of the test's own."""
    (tmp_path / "work").mkdir()
    monkeypatch.chdir(tmp_path / "work")

    def find_name(name: str = NAME, **more: str) -> Path:
        with hub_library(**variables(hub, tmp_path, **more)):
            return find_checkpoint(Path(name)).directory

    return find_name


@pytest.fixture
def refusal(find: Callable[..., Path]) -> Callable[..., str]:
    """Return the sentence with which a name is refused, after the code of its error."""

    def refused(name: str = NAME, **more: str) -> str:
        with pytest.raises(S1MiniError) as raised:
            find(name, **more)
        return f"{raised.value.code} {raised.value}"

    return refused


def test_a_name_is_an_owner_and_a_repository_and_optionally_a_revision() -> None:
    assert hub_name(Path("suno/bark-small")) == HubName("suno/bark-small")
    assert hub_name(Path("owner/name@refs/pr/1")) == HubName("owner/name", "refs/pr/1")
    for path in ("name", "/opt/ml/model", "../owner/name", "a/b/c", "owner/name@", "~/name"):
        assert hub_name(Path(path)) is None


@pytest.mark.parametrize("form", ["published", "compact"])
@pytest.mark.parametrize("family", SHORT_NAMES)
def test_only_needed_files_of_each_family_are_downloaded_and_never_python(
    family: str, form: Literal["published", "compact"], hub: Hub, find: Callable[..., Path], tmp_path: Path
) -> None:
    files = publish(hub, tmp_path / "random", family, form)

    directory = find()

    assert {*files, "README.md"} == hub.downloads() == set(files_of(directory))
    assert all((directory / name).read_bytes() == data for name, data in files.items())


def test_of_a_cascade_the_single_file_precedes_the_sets_and_a_set_is_complete() -> None:
    sets = [f"{stem}{ending}" for ending in (".pt", "_2.pt") for stem in ("text", "coarse", "fine")]
    others = ["config.json", "vocab.txt", "codec.safetensors", "README.md"]
    pick = get_family("cascade").pick_files

    assert set(pick([*sets, *others, "pytorch_model.bin"])) == {"config.json", "vocab.txt", "pytorch_model.bin"}
    assert set(pick([*sets, *others])) == {*sets[3:], *others[:3]}


def test_weights_come_in_the_best_form_with_the_shards_of_an_index(
    hub: Hub, repository: Repository, find: Callable[..., Path], published: Path
) -> None:
    more = {f"model-0000{part}-of-00002.safetensors": f"shard {part}".encode() for part in (1, 2)}
    index = {"model.safetensors.index.json": b"{}", "codec.safetensors": b"best", "voices/a.safetensors": b"voice"}
    repository.commit({**files_of(published), **more, **index})

    find()

    assert {"model.pth", "codec.pth"} & hub.downloads() == set()
    assert {*more, *index} <= hub.downloads()


def test_a_directory_of_that_name_takes_precedence_over_the_hub(
    hub: Hub, repository: Repository, find: Callable[..., Path], tmp_path: Path
) -> None:
    (tmp_path / "work" / NAME).mkdir(parents=True)

    assert find() == Path(NAME)
    assert hub.asked == []


def test_a_revision_is_a_branch_a_tag_or_a_commit_and_stays_while_the_branch_moves(
    repository: Repository, find: Callable[..., Path], published: Path
) -> None:
    first = repository.refs["main"]
    second = repository.commit({**files_of(published), "README.md": b"newer"})
    repository.refs["v1"] = first

    assert [find(name).name for name in (NAME, f"{NAME}@v1", f"{NAME}@{first}")] == [second, first, first]


def test_a_second_start_downloads_nothing_and_with_a_commit_asks_nothing(
    hub: Hub, repository: Repository, find: Callable[..., Path]
) -> None:
    directory = find()
    hub.asked.clear()

    assert find(f"{NAME}@{directory.name}") == directory
    assert hub.asked == []
    assert find() == directory
    assert hub.downloads() == set()


@pytest.mark.parametrize("way", ["HF_HUB_OFFLINE", "no network", "the hub is down"])
def test_without_a_network_the_cache_works_and_a_line_says_so_without_torch(
    way: str, hub: Hub, repository: Repository, find: Callable[..., Path], tmp_path: Path
) -> None:
    directory = find()
    hub.asked.clear()
    if way == "the hub is down":
        hub.fails_with = 503
    offline = {"HF_HUB_OFFLINE": {"HF_HUB_OFFLINE": "1"}, "no network": {"HF_ENDPOINT": "http://127.0.0.1:9"}}
    environment = os.environ | variables(hub, tmp_path) | offline.get(way, {})

    command = [sys.executable, "-c", FIND, NAME]
    process = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)

    assert process.returncode == 0, process.stderr
    assert process.stdout.strip() == str(directory)
    assert "Using cached commit hash" in process.stderr
    assert f"checkpoint {NAME}: commit {directory.name}" in process.stderr
    assert hub.downloads() == set()


def test_without_a_network_uncached_names_are_refused_with_a_hint(
    repository: Repository, refusal: Callable[..., str]
) -> None:
    nowhere = "http://127.0.0.1:9"

    for more, why in (
        ({"HF_HUB_OFFLINE": "1"}, "HF_HUB_OFFLINE is set"),
        ({"HF_ENDPOINT": nowhere}, f"{nowhere} cannot be reached"),
    ):
        sentence = refusal(**more)
        assert sentence.startswith(f"checkpoint_not_found checkpoint {NAME} is not a local directory, is incomplete in")
        assert f"{why}: go online once to download it, or use a local directory" in sentence


def test_half_a_checkpoint_in_the_cache_is_refused_without_a_network_and_made_whole_with_it(
    repository: Repository, find: Callable[..., Path], refusal: Callable[..., str], published: Path
) -> None:
    directory = find()
    (directory / "codec.pth").resolve().unlink()
    (directory / "codec.pth").unlink()

    assert "is incomplete in the hub's cache" in refusal(HF_HUB_OFFLINE="1")
    assert find() == directory
    assert (directory / "codec.pth").read_bytes() == (published / "codec.pth").read_bytes()


def test_a_gated_repository_says_where_to_accept_and_works_with_the_token(
    hub: Hub, repository: Repository, find: Callable[..., Path], refusal: Callable[..., str]
) -> None:
    repository.is_gated = True

    for more in ({}, {"HF_TOKEN": "hf_of_somebody_else"}):  # answered with 401 and 403
        assert refusal(**more) == (
            f"checkpoint_not_found checkpoint {NAME} is gated: accept its licence at {hub.url}/{NAME} and set HF_TOKEN "
            "to a token of that account"
        )
    assert (find(HF_TOKEN=TOKEN) / "config.json").is_file()


def test_a_missing_repository_or_revision_is_refused_by_its_name(
    hub: Hub, repository: Repository, refusal: Callable[..., str]
) -> None:
    for more in ({}, {"HF_TOKEN": TOKEN}):  # answered with 401 and 404
        assert refusal("owner/nothing", **more) == (
            "checkpoint_not_found checkpoint owner/nothing is neither a local directory nor a readable repository at "
            f"{hub.url}/owner/nothing: correct the name, or set HF_TOKEN if it is private"
        )
    assert refusal(HF_TOKEN="hf_expired") == (
        f"checkpoint_not_found checkpoint {NAME}: the hub rejected HF_TOKEN; set a valid token, or unset it"
    )
    assert refusal(f"{NAME}@v9") == (
        f"checkpoint_not_found checkpoint {NAME}@v9: {hub.url}/{NAME} has no such revision; specify a branch, a tag "
        "or a full commit hash after @"
    )
    hub.fails_with = 429
    assert refusal() == (f"checkpoint_not_found checkpoint {NAME}: {hub.url}/{NAME} returned HTTP 429; try again later")


def test_a_repository_that_is_not_a_checkpoint_is_refused_before_its_weights_are_downloaded(
    hub: Hub, repository: Repository, refusal: Callable[..., str], published: Path
) -> None:
    files = files_of(published)
    repository.commit({"README.md": CARD})
    assert "owner/tiny-voice has no config.json, so it is not a checkpoint of any family" in refusal()

    repository.commit({**files, "config.json": b'{"model_type": "llama"}'})
    assert "not a checkpoint of any family of this engine (dual_ar" in refusal()

    repository.commit({name: data for name, data in files.items() if name not in {"codec.pth", "tokenizer.tiktoken"}})
    assert "it lacks tokenizer.tiktoken, codec.safetensors (or codec.pth)" in refusal()
    assert "model.pth" not in hub.downloads()


@pytest.mark.parametrize(
    ("family", "values", "complaint"),
    [
        ("audio8", {"slow_backbone": "falcon_h1"}, "slow_backbone='falcon_h1' must be \"arktts\""),
        ("qwen3", {"tokenizer_type": "qwen3_tts_tokenizer_25hz"}, "25 Hz models are not supported"),
    ],
)
def test_an_unsupported_relative_of_a_family_is_refused_by_its_config_alone(
    family: str, values: dict[str, str], *, complaint: str, hub: Hub, refusal: Callable[..., str], tmp_path: Path
) -> None:
    files = publish(hub, tmp_path / "random", family)
    files["config.json"] = json.dumps(json.loads(files["config.json"]) | values).encode()
    hub.repositories[NAME].commit(files)

    assert complaint in refusal()
    assert hub.downloads() <= {"config.json", "README.md"}


def test_a_checkpoint_that_does_not_fit_on_the_disk_is_refused_before_it_is_downloaded(
    hub: Hub, repository: Repository, refusal: Callable[..., str], tmp_path: Path
) -> None:
    repository.told_sizes["model.pth"] = 10**17

    sentence = refusal()

    assert f"the disk of {tmp_path / 'hf' / 'hub'} is full (the download needs 100,000,000." in sentence
    assert sentence.endswith("are free); free some space, or set HF_HOME to a folder on another disk")
    assert "model.pth" not in hub.downloads()


def test_a_cache_that_cannot_be_written_is_named(
    repository: Repository, refusal: Callable[..., str], tmp_path: Path
) -> None:
    (tmp_path / "file").touch()

    sentence = refusal(HF_HOME=str(tmp_path / "file"))

    assert f"checkpoint {NAME} cannot be stored in {tmp_path / 'file' / 'hub'}: " in sentence


def test_a_library_that_is_too_old_is_reported_with_the_upgrade_command(
    repository: Repository, refusal: Callable[..., str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    metadata = tmp_path / "old" / "huggingface_hub-1.33.0.dist-info" / "METADATA"
    metadata.parent.mkdir(parents=True)
    metadata.write_text("Metadata-Version: 2.4\nName: huggingface_hub\nVersion: 1.33.0\n", encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path / "old")

    sentence = refusal()

    assert "needs huggingface-hub<3,>=2, of which version 1.33.0 is installed: pip install" in sentence


@pytest.mark.parametrize("family", SHORT_NAMES)
def test_a_plan_of_any_family_downloads_no_weights(family: str, hub: Hub, tmp_path: Path) -> None:
    publish(hub, tmp_path / "random", family)

    with hub_library(**variables(hub, tmp_path)):
        code, told, error = run_here("plan", "--gpu", "l4", "--json", "--checkpoint", NAME)

    assert code == 0, error
    assert json.loads(told)["checkpoint"] == NAME
    assert "config.json" in hub.downloads()
    assert {Path(name).suffix for name in hub.downloads()} <= {".json", ".txt", ".md", ".tiktoken", ".model"}


def test_a_package_and_a_conversion_record_commit_and_licence_and_the_engine_reports_them(
    hub: Hub, repository: Repository, tmp_path: Path
) -> None:
    commit = repository.refs["main"]
    origin = {"repository": NAME, "revision": commit, "licence": "cc-by-nc-sa-4.0"}
    told = {
        f"{NAME} at commit {commit}, licence: cc-by-nc-sa-4.0",
        f"s1-mini: warning: the licence of {NAME}, cc-by-nc-sa-4.0, does not allow commercial use",
    }
    packed, compact, again = (tmp_path / name for name in ("packed", "compact", "again"))

    with hub_library(**variables(hub, tmp_path)):
        for words in (
            ("package", "--checkpoint", NAME, "--layout", "prefix", "-o", packed),
            ("convert", "--checkpoint", NAME, "-o", compact),
            ("package", "--checkpoint", compact, "--layout", "prefix", "-o", again),
        ):
            code, _, error = run_here(*words)
            assert code == 0, error
            assert told <= set(error.splitlines())

    for directory in (packed, again):
        assert json.loads((directory / "manifest.json").read_bytes())["origin"] == origin
    assert all(origin_of(directory) == Origin(**origin) for directory in (packed, compact, again))
    with hub_library(**variables(hub, tmp_path, HF_HUB_OFFLINE="1")):
        for name in (Path(NAME), packed):
            with ProductionTTSEngine(EngineConfig(checkpoint_path=name, device="cpu")) as engine:
                assert engine.health_check()["origin"] == origin


def commit_in_cache(folder: Path, card: str) -> Path:
    directory = folder / "models--owner--name" / "snapshots" / ("0" * 40)
    directory.mkdir(parents=True)
    (directory / "README.md").write_text(card, encoding="utf-8")
    return directory


@pytest.mark.parametrize(
    ("card", "licence", "caution"),
    [
        ("---\nlicense: mit\n---\n", "mit", None),
        ("---\nlicense: [mit, cc-by-nc-4.0]\n---\n", "mit, cc-by-nc-4.0", "does not allow commercial use"),
        (
            "---\nlicense: other\nlicense_name: fair-noncommercial\n---\n",
            "other (fair-noncommercial)",
            "not allow commercial",
        ),
        ("---\nlicense: other\n---\n", "other", "'other': check its page"),
        ("---\nlicense: unknown\n---\n", "unknown", "'unknown': check its page"),
        ("# no head\n", "unknown", "'unknown': check its page"),
        ("---\nlicense: [\n---\n", "unknown", "'unknown': check its page"),
        ('---\nlicense: "a\\e[31m"\n---\n', "unknown", "'unknown': check its page"),
    ],
)
def test_a_licence_is_what_the_head_of_the_card_names(
    card: str, licence: str, caution: str | None, tmp_path: Path
) -> None:
    origin = origin_of(commit_in_cache(tmp_path, card))

    assert origin is not None
    assert origin.licence == licence
    assert (origin.caution is None) if caution is None else caution in str(origin.caution)


@pytest.mark.parametrize("content", ["[1]", '{"origin": 1}', '{"origin": {"repository": "owner/name"}}', "{"])
def test_an_invalid_origin_is_refused_with_the_name_of_its_file(content: str, tmp_path: Path) -> None:
    (tmp_path / "origin.json").write_text(content, encoding="utf-8")

    with pytest.raises(CheckpointFileError, match=r"origin\.json: origin cannot be read"):
        origin_of(tmp_path)
