"""scripts/ and the lock files. No test here uses an index or starts pip."""

import importlib.util
import os
import re
import sys
from functools import cache
from importlib import metadata
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from waiting import EVENTUALLY_S

ROOT = Path(__file__).resolve().parent.parent
SCRIPTS = ROOT / "scripts"


def load(name):
    spec = importlib.util.spec_from_file_location(f"scripts_{name}", SCRIPTS / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


environment = load("environment")


@pytest.fixture
def script(monkeypatch):
    """Return the loader of scripts, which import `environment` from their own directory."""
    monkeypatch.setitem(sys.modules, "environment", environment)
    return load


@pytest.fixture
def check(script):
    return script("test")


@pytest.fixture
def demo(script, monkeypatch):
    """Return the demo, which runs in this environment with bounded slots, because random models do not stop."""
    demo = script("demo")
    variables = {**os.environ, "PYTHONPATH": str(ROOT / "src"), "S1_MINI_MAX_COLUMNS": "96"}
    monkeypatch.setattr(demo.environment, "ensure", lambda _: Path(sys.executable))
    monkeypatch.setattr(demo.environment, "child_env", lambda *_: dict(variables))
    return demo


@pytest.fixture
def root(tmp_path):
    """Return a minimal checkout."""
    (tmp_path / "requirements.lock.txt").write_text("# a==b\none==1 \\\n    --hash=sha256:0\n    # via two\ntwo==2\n")
    (tmp_path / "requirements-torch.lock.txt").write_text("torch==2\n")
    (tmp_path / "requirements-test.lock.txt").write_text("three==3\n")
    (tmp_path / "requirements-pip.lock.txt").write_text("pip==5\n")
    for name in environment.METADATA:
        (tmp_path / name).write_text("one\n")
    (tmp_path / "infra").mkdir()
    (tmp_path / "infra" / "requirements.lock.txt").write_text("four==4\n")
    return tmp_path


class Machine:
    """A machine without a network: it records each step, and fails those that a test selects."""

    def __init__(self, root, recipe=environment.ENGINE):
        self.root = root
        self.recipe = recipe
        self.steps = []  # "probe", "venv", "pip", "pins", "torch" or "checkout"
        self.commands = []
        self.output = {}  # step → its output
        self.failure = {}  # step → exit code, or exception, until a venv is recreated
        self.free_bytes = 10**12

    def run(self, command, log):
        step = self.step_of(command)
        self.steps.append(step)
        self.commands.append(command)
        if log:
            log.write_text(log.read_text() + self.output.get(step, ""))
        if step == "venv":
            self.failure.pop("probe", None)
            self.make_venv()
        failure = self.failure.get(step, 0)
        if isinstance(failure, BaseException):
            raise failure
        return failure

    def step_of(self, command):
        if "-c" in command:
            return "probe"
        if "venv" in command:
            return "venv"
        if any(word.startswith("--editable=") for word in command):
            return "checkout"
        if any(word.endswith(environment.PIP_LOCK) for word in command):
            return "pip"
        return "pins" if "--require-hashes" in command else "torch"

    def make_venv(self):
        (self.root / self.recipe.folder).mkdir(exist_ok=True)
        (self.root / self.recipe.folder / "pyvenv.cfg").touch()

    def ensure(self, extras=()):
        """Return the steps taken, except probing a Python."""
        self.steps.clear()
        environment.Environment(self.root, self.run, lambda _: self.free_bytes, self.recipe).ensure(extras)
        return [step for step in self.steps if step != "probe"]


@pytest.fixture
def machine(root):
    return Machine(root)


EVERYTHING = ["venv", "pip", "pins", "torch", "checkout"]


# Setting up


def test_the_first_run_installs_everything_and_the_second_only_starts_python(machine, capsys):
    assert machine.ensure(["test"]) == EVERYTHING
    assert "--no-build-isolation" in machine.commands[-1]
    said = capsys.readouterr().err.splitlines()
    assert [line.split()[0] for line in said] == ["Creating", "Installing", "Installing"]
    assert said[1].startswith("Installing 4 packages (about 450 MB")

    machine.ensure(["test"])

    assert machine.steps == ["probe"]
    assert capsys.readouterr().err == ""
    assert machine.ensure() == [], "the base is a part of what is there"


def test_a_changed_lock_file_installs_only_its_own_packages(machine, root):
    machine.ensure(["test"])

    for changed, steps in {
        "requirements.lock.txt": ["pins", "torch"],
        "requirements-torch.lock.txt": ["pins", "torch"],
        "requirements-test.lock.txt": ["pins"],
        "setup.cfg": ["checkout"],
        "requirements-aws.txt": ["checkout"],
        "README.md": [],
    }.items():
        with (root / changed).open("a") as file:
            file.write("\n")
        assert (machine.ensure(["test"]), machine.ensure(["test"])) == (steps, []), changed


@pytest.mark.parametrize(
    "spoil",
    [
        lambda machine: machine.failure.update(probe=1),  # another Python
        lambda machine: machine.failure.update(probe=PermissionError("not a program of this machine")),
        lambda machine: setattr(machine, "root", machine.root.rename(machine.root.with_name("elsewhere"))),
    ],
    ids=["broken", "foreign", "moved"],
)
def test_a_broken_venv_is_recreated(machine, spoil):
    machine.ensure()
    (machine.root / ".venv" / "leftover").mkdir()

    spoil(machine)

    assert machine.ensure() == EVERYTHING
    assert not (machine.root / ".venv" / "leftover").exists()


@pytest.mark.parametrize(
    ("step", "output", "steps"),
    [
        ("venv", "", EVERYTHING),
        ("pip", "", EVERYTHING),
        ("pins", "Collecting one==1\n", ["pins", "torch", "checkout"]),
        ("torch", "Collecting torch==2\n", ["pins", "torch", "checkout"]),
        ("torch", "Installing collected packages: torch\n", EVERYTHING),
        ("pins", "Collecting one==1\nInstalling collected packages: one\n", EVERYTHING),
        ("checkout", "Obtaining file:///checkout\n", ["checkout"]),
        ("checkout", "Installing collected packages: s1_mini\n", EVERYTHING),
    ],
)
def test_the_run_after_an_interruption_repairs_a_partial_installation(machine, step, output, steps):
    machine.output[step] = output
    machine.failure[step] = KeyboardInterrupt()
    with pytest.raises(KeyboardInterrupt):
        machine.ensure()

    machine.failure.clear()

    assert machine.ensure() == steps
    assert machine.ensure() == []


def test_pins_that_could_not_be_downloaded_leave_the_venv_as_it_was(machine, root):
    machine.ensure()
    (root / "requirements.lock.txt").write_text("one==2  # why\n")
    machine.output["pins"] = "connection broken by 'NewConnectionError(...)'"
    machine.failure["pins"] = 1

    with pytest.raises(environment.SetupError, match="PIP_INDEX_URL"):
        machine.ensure()

    machine.failure.clear()
    assert machine.ensure() == ["pins", "torch"]


# One run at a time


def test_a_run_waits_for_the_one_that_holds_the_lock(tmp_path, capsys):
    path = tmp_path / "lock"
    holder = path.open("a")
    assert environment._try_lock(holder)
    waits = []

    def sleep(seconds):
        waits.append(seconds)
        if len(waits) == 3:
            holder.close()

    with environment.only_one(path, sleep=sleep):
        pass

    assert len(waits) == 3
    assert capsys.readouterr().err.count("waiting for it") == 1


def test_an_old_python_reports_the_required_version():
    for version in (3, 6, 15), (3, 10, 14), (2, 7, 18):
        with pytest.raises(environment.SetupError, match=r"needs 3\.11 or newer"):
            environment.require_python(version)
    for version in (3, 11, 0), (3, 14, 1), (4, 0, 0):
        environment.require_python(version)


# demo.py


def test_the_demo_calls_its_own_server_like_aws(demo, tmp_path):
    output, checkpoint = tmp_path / "a.wav", ROOT / "tests" / "assets" / "s1_tiny"

    code = demo.main(["-A dash, and a sentence.", "-o", str(output), "--checkpoint", str(checkpoint), "--seed", "1"])

    assert code == 0
    assert output.read_bytes()[:4] == b"RIFF"


# test.py


def test_pytest_runs_last_and_runs_gpu_tests_only_on_request(check):
    for arguments, marker in ([], check.EVERYWHERE), (["--gpu"], "gpu"):
        checks = check.checks(Path("python"), *check.parse([*arguments, "-k", "scheduler"]), is_new=not arguments)

        bytecode = [] if arguments else ["bytecode"]
        names = ["ruff check", "ruff format", "mypy", "mypy win32", "lint-imports", *bytecode, "pytest"]
        assert [name for name, _ in checks] == names
        together = () if marker == "gpu" else check.SIDE_BY_SIDE
        assert checks[-1][1] == ["python", "-m", "pytest", "-m", marker, *together, "-k", "scheduler"]


def test_pytest_waits_for_the_bytecode_and_for_no_other_check(check, tmp_path, capfd):
    made, began = tmp_path / "made", tmp_path / "began"
    programs = {
        "mypy": f"import os, time\nends = time.time() + {EVENTUALLY_S}\n"
        f"while not os.path.exists({str(began)!r}) and time.time() < ends: time.sleep(0.01)\n"
        f"print('types')\nexit(os.path.exists({str(began)!r}))",
        "bytecode": f"open({str(made)!r}, 'w').close()",
        "pytest": f"open({str(made)!r}).close(); open({str(began)!r}, 'w').close(); print('tests')",
    }

    results = check.run_all([(name, [sys.executable, "-c", program]) for name, program in programs.items()])

    assert [(result.name, result.passed) for result in results] == [
        ("mypy", False),
        ("bytecode", True),
        ("pytest", True),
    ]
    output = capfd.readouterr().out
    assert "--- mypy\ntypes\n" in output
    assert "tests\n" in output.partition("--- pytest\n")[2]


def test_infra_is_one_command_in_a_separate_environment(check, monkeypatch):
    made, ran = [], []
    monkeypatch.setattr(check, "node_version", lambda: "v22.20.2\n")
    monkeypatch.setattr(check.environment, "ensure", lambda _, recipe: made.append(recipe) or Path("python"))
    monkeypatch.setattr(
        check,
        "run_all",
        lambda wanted: [ran.append(command) or check.Result(name, 1.0, True) for name, command in wanted],
    )

    assert check.main(["--infra", "-x"]) == 0

    assert made == [environment.INFRA]
    assert ran == [["python", "-m", "pytest", "-m", "infra", "--confcutdir=tests/infra", "tests/infra", "-x"]]


# Lock files


def locked(name):
    """Yield requirement, hashes and reason of each pin of a lock file."""
    for block in re.findall(r"(?m)^[A-Za-z0-9].*\n(?:[ ]+.*\n)*", (ROOT / name).read_text(encoding="utf-8")):
        pinned, _, reason = block.partition("# ")
        pin, *hashes = (line.strip().removesuffix("\\").strip() for line in pinned.strip().splitlines())
        yield Requirement(pin), hashes, reason.strip()


def pins_of(*names):
    """Return package → version."""
    return {
        canonicalize_name(pin.name): next(iter(pin.specifier)).version for name in names for pin, _, _ in locked(name)
    }


TORCH_LOCK = "requirements-torch.lock.txt"
PIP_LOCK = environment.PIP_LOCK
ALL_LOCKS = ("requirements.lock.txt", "requirements-test.lock.txt")
INFRA_LOCK = "infra/requirements.lock.txt"
RELEASE_LOCK = "requirements-release.lock.txt"


def test_each_pin_is_exact_hashed_and_explained_and_a_lock_names_no_index_and_no_path():
    for name in (*ALL_LOCKS, TORCH_LOCK, PIP_LOCK, INFRA_LOCK, RELEASE_LOCK):
        assert re.findall(r"(?m)://|^-|(?<=\s)/\w.*", (ROOT / name).read_text(encoding="utf-8")) == []
        for pin, hashes, reason in locked(name):
            assert [spec.operator for spec in pin.specifier] == ["=="], pin
            assert "*" not in str(pin.specifier)
            assert all(re.fullmatch("--hash=sha256:[0-9a-f]{64}", each) for each in hashes), pin
            assert bool(hashes) != (pin.name == "torch"), (
                "torch alone has none: a version has other files on each index"
            )
            assert reason.startswith("via ") or name == TORCH_LOCK, pin


RANGES = {
    "requirements.txt": ("requirements.lock.txt", TORCH_LOCK),
    **{f"requirements-{extra}.txt": ALL_LOCKS[:1] for extra in ("server", "aws", "hub", "otel")},
    **{
        f"requirements-{extra}.txt": ALL_LOCKS
        for extra in ("play", "replicas", "corpus", "wyoming", "mcp", "c2pa", "av", "test")
    },
    "infra/requirements.txt": (INFRA_LOCK,),
    "requirements-release.txt": (RELEASE_LOCK,),
}


@pytest.mark.parametrize("ranges", RANGES)
def test_every_requirement_has_a_reason_and_is_pinned_within_its_range(ranges):
    pins = pins_of(*RANGES[ranges])

    for line in (ROOT / ranges).read_text(encoding="utf-8").splitlines():
        if not line.startswith("#"):
            text, _, reason = line.partition(" # ")
            requirement = Requirement(text)
            assert reason, requirement
            assert requirement.specifier.contains(pins[canonicalize_name(requirement.name)]), requirement


def test_no_package_is_locked_in_two_versions():
    pins = pins_of(*ALL_LOCKS, TORCH_LOCK)

    names = [canonicalize_name(pin.name) for name in (*ALL_LOCKS, TORCH_LOCK) for pin, _, _ in locked(name)]
    assert sorted(names) == sorted(pins)
    assert {name: version for name, version in pins_of(INFRA_LOCK).items() if pins.get(name, version) != version} == {}


SYSTEMS = [("linux", "Linux", "posix"), ("win32", "Windows", "nt"), ("darwin", "Darwin", "posix")]
MACHINES = [
    {"extra": "", "sys_platform": sys_platform, "platform_system": system, "os_name": os_name}
    | {"python_version": python, "python_full_version": f"{python}.0"}
    for sys_platform, system, os_name in SYSTEMS
    for python in ("3.11", "3.12", "3.13", "3.14")
]


@pytest.mark.parametrize("count", [1, 2])
def test_the_pins_are_complete_and_compatible_on_every_system(count):
    """With hashes pip refuses packages that are not pinned."""
    pins = pins_of(*ALL_LOCKS[:count], TORCH_LOCK)
    cuda = ("cuda-", "nvidia-", "triton")  # torch with CUDA pins these itself

    for machine in MACHINES:
        for name in pins:
            for need in needs_of(name, machine):
                if not need.name.startswith(cuda):
                    assert canonicalize_name(need.name) in pins, f"{name} needs {need} on {machine}"
                    assert need.specifier.contains(pins[canonicalize_name(need.name)]), f"{name} needs {need}"


def needs_of(name, machine):
    """Return the requirements of an installed package that apply to a machine; none if it is not installed."""
    return [need for need in requirements_of(name) if need.marker is None or need.marker.evaluate(machine)]


@cache
def requirements_of(name):
    try:
        return [Requirement(text) for text in metadata.requires(name) or []]
    except metadata.PackageNotFoundError:
        return []
