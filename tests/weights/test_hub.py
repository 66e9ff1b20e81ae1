"""Checkpoints by their names on the hub: against its real library and a stand-in for its server."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Literal

import pytest

from hub_server import TOKEN, Hub, Repository, files_of, running_hub
from s1_mini.families.registry import SHORT_NAMES, get_family
from s1_mini.weights.hub import HubName, hub_name
from s1_mini.weights.origin import Origin, origin_of

NAME = "owner/tiny-voice"
CARD = b"---\nlicense: cc-by-nc-sa-4.0\ntags: [text-to-speech]\n---\n# A voice\n"
NOISE = {"modeling.py": b"raise SystemExit\n", "voices/hook.py": b"raise SystemExit\n", "demo.mp4": b"film"}

FIND = """
import logging, sys
from pathlib import Path
from s1_mini.exceptions import S1MiniError
from s1_mini.families.find import find_checkpoint

logging.basicConfig(level="INFO", format="%(message)s")
try:
    print(find_checkpoint(Path(sys.argv[1])).directory)
except S1MiniError as error:
    sys.exit(f"{error.code} {error}")
assert "torch" not in sys.modules
"""

Run = Callable[..., "subprocess.CompletedProcess[str]"]


@pytest.fixture
def hub() -> Iterator[Hub]:
    with running_hub() as hub:
        yield hub


@pytest.fixture
def repository(hub: Hub, published: Path) -> Repository:
    """A published checkpoint, with files that nobody needs."""
    hub.repositories[NAME] = Repository()
    hub.repositories[NAME].commit({**files_of(published), **NOISE, "README.md": CARD})
    return hub.repositories[NAME]


def publish(
    hub: Hub, folder: Path, family: str, form: Literal["published", "compact"] = "published", name: str = NAME
) -> dict[str, bytes]:
    """Let the hub have a random checkpoint of a family, beside files that nobody needs; give its own."""
    found = get_family(family)
    found.write_random(folder, size=next(iter(found.random_sizes)), form=form, seed=0)
    files = files_of(folder)
    hub.repositories[name] = Repository()
    hub.repositories[name].commit({**files, **NOISE, "README.md": CARD})
    return files


@pytest.fixture
def run(hub: Hub, tmp_path: Path) -> Run:
    """Run Python in a folder of its own, with a cache of its own: the library reads its variables once."""
    return runner(hub, tmp_path)


def runner(hub: Hub, folder: Path) -> Run:
    (folder / "work").mkdir()

    def run_python(*arguments: str | Path, **variables: str) -> subprocess.CompletedProcess[str]:
        ours = {name: value for name, value in os.environ.items() if not name.startswith(("HF_", "S1_MINI_"))}
        environment = ours | {"HF_ENDPOINT": hub.url, "HF_HOME": str(folder / "hf"), **variables}
        command = [sys.executable, *map(str, arguments)]
        return subprocess.run(
            command, capture_output=True, text=True, cwd=folder / "work", env=environment, check=False, timeout=300
        )

    return run_python


# Verbs in one process: each would load torch anew. Gives a line of JSON for each: exit code, output and errors.
RUN_ALL = """
import contextlib, io, json, sys
from s1_mini.cli.app import run

for arguments in json.loads(sys.argv[1]):
    sys.argv = ["s1-mini", *arguments]
    with contextlib.redirect_stdout(io.StringIO()) as out, contextlib.redirect_stderr(io.StringIO()) as told:
        code = run()
    print(json.dumps([code, out.getvalue(), told.getvalue()]))
"""


def run_all(run: Run, *verbs: list[str | Path]) -> list[tuple[int, str, str]]:
    """Give exit code, output and errors of each verb."""
    process = run("-c", RUN_ALL, json.dumps([[str(word) for word in verb] for verb in verbs]))
    assert process.returncode == 0, process.stderr
    return [tuple(json.loads(line)) for line in process.stdout.splitlines()]


@pytest.fixture
def find(run: Run) -> Callable[..., Path]:
    def find_name(name: str = NAME, **variables: str) -> Path:
        process = run("-c", FIND, name, **variables)
        assert process.returncode == 0, process.stderr
        return Path(process.stdout.strip())

    return find_name


@pytest.fixture
def refusal(run: Run) -> Callable[..., str]:
    """The one sentence that a name is refused with, after the code of its error."""

    def refused(name: str = NAME, **variables: str) -> str:
        process = run("-c", FIND, name, **variables)
        assert process.returncode == 1, process.stdout
        sentence = process.stderr.splitlines()[-1]
        assert "Traceback" not in process.stderr
        return sentence

    return refused


def test_a_name_is_an_owner_and_a_repository_and_perhaps_a_revision() -> None:
    assert hub_name(Path("suno/bark-small")) == HubName("suno/bark-small")
    assert hub_name(Path("owner/name@refs/pr/1")) == HubName("owner/name", "refs/pr/1")
    for path in ("name", "/opt/ml/model", "../owner/name", "a/b/c", "owner/name@", "~/name"):
        assert hub_name(Path(path)) is None


@pytest.mark.parametrize("form", ["published", "compact"])
@pytest.mark.parametrize("family", SHORT_NAMES)
def test_of_every_family_what_it_needs_is_downloaded_and_never_python(
    family: str, form: Literal["published", "compact"], hub: Hub, find: Callable[..., Path], tmp_path: Path
) -> None:
    files = publish(hub, tmp_path / "random", family, form)

    directory = find()

    assert {*files, "README.md"} == hub.downloads() == set(files_of(directory))
    assert all((directory / name).read_bytes() == data for name, data in files.items())


def test_of_a_cascade_the_whole_file_goes_before_the_sets_and_a_set_comes_whole() -> None:
    sets = [f"{stem}{ending}" for ending in (".pt", "_2.pt") for stem in ("text", "coarse", "fine")]
    others = ["config.json", "vocab.txt", "codec.safetensors", "README.md"]
    pick = get_family("cascade").pick_files

    assert set(pick([*sets, *others, "pytorch_model.bin"])) == {"config.json", "vocab.txt", "pytorch_model.bin"}
    assert set(pick([*sets, *others])) == {*sets[3:], *others[:3]}


def test_weights_come_in_one_form_the_best_with_the_shards_of_an_index(
    hub: Hub, repository: Repository, find: Callable[..., Path], published: Path
) -> None:
    more = {f"model-0000{part}-of-00002.safetensors": f"shard {part}".encode() for part in (1, 2)}
    index = {"model.safetensors.index.json": b"{}", "codec.safetensors": b"best", "voices/a.safetensors": b"voice"}
    repository.commit({**files_of(published), **more, **index})

    find()

    assert {"model.pth", "codec.pth"} & hub.downloads() == set()
    assert {*more, *index} <= hub.downloads()


def test_a_directory_of_that_name_goes_before_the_hub(
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
def test_without_a_network_what_is_in_the_cache_works_and_a_line_says_so(
    way: str, hub: Hub, repository: Repository, find: Callable[..., Path], run: Run
) -> None:
    directory = find()
    hub.asked.clear()
    if way == "the hub is down":
        hub.fails_with = 503
    offline = {"HF_HUB_OFFLINE": {"HF_HUB_OFFLINE": "1"}, "no network": {"HF_ENDPOINT": "http://127.0.0.1:9"}}

    process = run("-c", FIND, NAME, **offline.get(way, {}))

    assert process.stdout.strip() == str(directory)
    assert "Using cached commit hash" in process.stderr
    assert f"checkpoint {NAME}: commit {directory.name}" in process.stderr
    assert hub.downloads() == set()


def test_without_a_network_what_is_not_in_the_cache_is_refused_with_the_way_out(
    repository: Repository, refusal: Callable[..., str]
) -> None:
    nowhere = "http://127.0.0.1:9"

    for variables, why in (
        ({"HF_HUB_OFFLINE": "1"}, "HF_HUB_OFFLINE is set"),
        ({"HF_ENDPOINT": nowhere}, f"{nowhere} cannot be reached"),
    ):
        sentence = refusal(**variables)
        assert sentence.startswith(f"checkpoint_not_found checkpoint {NAME} is no directory here and is not whole in")
        assert f"{why}: connect once, or name a directory" in sentence


def test_half_a_checkpoint_in_the_cache_is_refused_without_a_network_and_made_whole_with_it(
    repository: Repository, find: Callable[..., Path], refusal: Callable[..., str], published: Path
) -> None:
    directory = find()
    (directory / "codec.pth").resolve().unlink()
    (directory / "codec.pth").unlink()

    assert "is not whole in the cache" in refusal(HF_HUB_OFFLINE="1")
    assert find() == directory
    assert (directory / "codec.pth").read_bytes() == (published / "codec.pth").read_bytes()


def test_a_gated_repository_tells_where_to_accept_and_opens_with_the_token(
    hub: Hub, repository: Repository, find: Callable[..., Path], refusal: Callable[..., str]
) -> None:
    repository.is_gated = True

    for variables in ({}, {"HF_TOKEN": "hf_of_somebody_else"}):  # answered with 401 and 403
        assert refusal(**variables) == (
            f"checkpoint_not_found checkpoint {NAME} is gated: accept its licence at {hub.url}/{NAME} and set HF_TOKEN "
            "to a token of that account"
        )
    assert (find(HF_TOKEN=TOKEN) / "config.json").is_file()


def test_a_missing_repository_or_revision_is_refused_by_its_name(
    hub: Hub, repository: Repository, refusal: Callable[..., str]
) -> None:
    for variables in ({}, {"HF_TOKEN": TOKEN}):  # answered with 401 and 404
        assert refusal("owner/nothing", **variables) == (
            f"checkpoint_not_found checkpoint owner/nothing is no directory here, and no repository at {hub.url}/"
            "owner/nothing that may be read: correct the name, or set HF_TOKEN if it is private"
        )
    assert refusal(HF_TOKEN="hf_expired") == (
        f"checkpoint_not_found checkpoint {NAME}: the hub does not take this HF_TOKEN; set a valid one, or none"
    )
    assert refusal(f"{NAME}@v9") == (
        f"checkpoint_not_found checkpoint {NAME}@v9: {hub.url}/{NAME} has no such revision; name a branch, a tag or a "
        "whole commit hash after @"
    )
    hub.fails_with = 429
    assert refusal() == (
        f"checkpoint_not_found checkpoint {NAME}: the hub answers {hub.url}/{NAME} with HTTP 429; try again later"
    )


def test_a_repository_that_is_no_checkpoint_is_refused_before_its_weights_are_downloaded(
    hub: Hub, repository: Repository, refusal: Callable[..., str], published: Path
) -> None:
    files = files_of(published)
    repository.commit({"README.md": CARD})
    assert "owner/tiny-voice has no config.json: it is no checkpoint of any family" in refusal()

    repository.commit({**files, "config.json": b'{"model_type": "llama"}'})
    assert "no checkpoint of any family of this engine (dual_ar" in refusal()

    repository.commit({name: data for name, data in files.items() if name not in {"codec.pth", "tokenizer.tiktoken"}})
    assert "it lacks tokenizer.tiktoken, codec.safetensors (or codec.pth)" in refusal()
    assert "model.pth" not in hub.downloads()


def test_what_does_not_fit_on_the_disk_is_refused_before_it_is_downloaded(
    hub: Hub, repository: Repository, refusal: Callable[..., str], tmp_path: Path
) -> None:
    repository.told_sizes["model.pth"] = 10**17

    sentence = refusal()

    assert f"the disk of {tmp_path / 'hf' / 'hub'} is full (100,000,000." in sentence
    assert sentence.endswith("are free); free some, or name a folder on another disk with HF_HOME")
    assert "model.pth" not in hub.downloads()


def test_a_cache_that_cannot_be_written_is_named(
    repository: Repository, refusal: Callable[..., str], tmp_path: Path
) -> None:
    (tmp_path / "file").touch()

    sentence = refusal(HF_HOME=str(tmp_path / "file"))

    assert f"checkpoint {NAME} cannot be kept in {tmp_path / 'file' / 'hub'}: " in sentence


def test_a_library_that_is_too_old_is_told_with_the_command(
    repository: Repository, refusal: Callable[..., str], tmp_path: Path
) -> None:
    (tmp_path / "old" / "huggingface_hub").mkdir(parents=True)
    (tmp_path / "old" / "huggingface_hub" / "__init__.py").touch()
    path = os.pathsep.join(filter(None, [str(tmp_path / "old"), os.environ.get("PYTHONPATH")]))

    assert refusal(PYTHONPATH=path) == (
        f"configuration_invalid checkpoint {NAME}: huggingface-hub is too old for it: "
        'pip install --upgrade "s1-mini[hub]"'
    )


@pytest.fixture(scope="module")
def planned(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[tuple[int, str, str], set[str]]]:
    """What `s1-mini plan` says of each family's checkpoint, and the files that it downloads."""
    folder = tmp_path_factory.mktemp("planned")
    with running_hub() as hub:
        for family in SHORT_NAMES:
            publish(hub, folder / family, family, name=f"owner/{family}")
        plan = ["plan", "--gpu", "l4", "--json", "--checkpoint"]
        told = run_all(runner(hub, folder), *([*plan, f"owner/{family}"] for family in SHORT_NAMES))
        return {
            family: (said, hub.downloads(f"owner/{family}")) for family, said in zip(SHORT_NAMES, told, strict=True)
        }


@pytest.mark.parametrize("family", SHORT_NAMES)
def test_a_plan_of_any_family_downloads_no_weights(
    family: str, planned: dict[str, tuple[tuple[int, str, str], set[str]]]
) -> None:
    (code, said, error), downloads = planned[family]

    assert code == 0, error
    assert json.loads(said)["checkpoint"] == f"owner/{family}"
    assert "config.json" in downloads
    assert {Path(name).suffix for name in downloads} <= {".json", ".txt", ".md", ".tiktoken", ".model"}


HEALTH = """
import os, sys
from s1_mini import ProductionTTSEngine

for os.environ["S1_MINI_CHECKPOINT_PATH"] in sys.argv[1:]:
    with ProductionTTSEngine() as engine:
        print(engine.health_check()["origin"])
"""


@pytest.mark.slow
def test_a_package_and_a_conversion_record_commit_and_licence_and_the_engine_tells_them(
    repository: Repository, run: Run, tmp_path: Path
) -> None:
    commit = repository.refs["main"]
    origin = {"repository": NAME, "revision": commit, "licence": "cc-by-nc-sa-4.0"}
    told = [
        f"{NAME} at commit {commit}, licence: cc-by-nc-sa-4.0",
        f"s1-mini: warning: the licence of {NAME}, cc-by-nc-sa-4.0, allows no commercial use",
    ]
    packed, compact, again = (tmp_path / name for name in ("packed", "compact", "again"))

    for code, _, said in run_all(
        run,
        ["package", "--checkpoint", NAME, "--layout", "prefix", "-o", packed],
        ["convert", "--checkpoint", NAME, "-o", compact],
        ["package", "--checkpoint", compact, "--layout", "prefix", "-o", again],
    ):
        assert code == 0, said
        assert [line for line in told if line not in said.splitlines()] == []

    for directory in (packed, again):
        assert json.loads((directory / "manifest.json").read_bytes())["origin"] == origin
    assert all(origin_of(directory) == Origin(**origin) for directory in (packed, compact, again))

    process = run("-c", HEALTH, NAME, packed, S1_MINI_DEVICE="cpu", HF_HUB_OFFLINE="1")
    assert process.stdout.splitlines() == [str(origin)] * 2, process.stderr


def commit_in_cache(folder: Path, card: str) -> Path:
    directory = folder / "models--owner--name" / "snapshots" / ("0" * 40)
    directory.mkdir(parents=True)
    (directory / "README.md").write_text(card, encoding="utf-8")
    return directory


@pytest.mark.parametrize(
    ("card", "licence", "caution"),
    [
        ("---\nlicense: mit\n---\n", "mit", None),
        ("---\nlicense: [mit, cc-by-nc-4.0]\n---\n", "mit, cc-by-nc-4.0", "allows no commercial use"),
        ("---\nlicense: other\nlicense_name: fair-noncommercial\n---\n", "other (fair-noncommercial)", "no commercial"),
        ("---\nlicense: other\n---\n", "other", "'other': read"),
        ("---\nlicense: unknown\n---\n", "unknown", "'unknown': read"),
        ("# no head\n", "unknown", "'unknown': read"),
        ("---\nlicense: [\n---\n", "unknown", "'unknown': read"),
        ('---\nlicense: "a\\e[31m"\n---\n', "unknown", "'unknown': read"),
    ],
)
def test_a_licence_is_what_the_head_of_the_card_names(
    card: str, licence: str, caution: str | None, tmp_path: Path
) -> None:
    origin = origin_of(commit_in_cache(tmp_path, card))

    assert origin is not None
    assert origin.licence == licence
    assert (origin.caution is None) if caution is None else caution in str(origin.caution)
