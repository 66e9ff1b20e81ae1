"""scripts/ and the lock files. No test here uses an index or starts pip."""

import ast
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


def test_an_extra_joins_what_is_there_with_all_pins_in_sight(machine):
    machine.ensure()

    assert machine.ensure(["test"]) == ["pins"]
    locks = [Path(word).name for word in machine.commands[-1] if word.startswith("--requirement=")]
    assert locks == ["requirements.lock.txt", "requirements-test.lock.txt"]


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


def test_a_venv_made_by_hand_is_completed_with_a_message_and_not_removed(machine, root, capsys):
    machine.make_venv()
    (root / ".venv" / "mine").touch()

    assert machine.ensure() == ["pins", "torch", "checkout"]
    assert (root / ".venv" / "mine").exists()
    assert "other versions in it, also of torch, are replaced" in capsys.readouterr().err


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


def test_a_failure_of_unknown_cause_shows_the_end_of_the_output_and_where_the_rest_is(machine, root):
    machine.output["pins"] = "".join(f"line {number}\n" for number in range(100))
    machine.failure["pins"] = 7

    with pytest.raises(environment.SetupError) as caught:
        machine.ensure()

    assert "line 99\n" in str(caught.value)
    assert "line 50\n" not in str(caught.value)
    assert "exit code 7" in str(caught.value)
    assert str(root / ".venv" / "install.log") in str(caught.value)


def test_a_full_disk_and_an_incomplete_checkout_are_reported_before_anything_is_created(machine, root):
    machine.free_bytes = 10**9
    with pytest.raises(environment.SetupError, match=r"3 GB .* 1\.0 GB are free"):
        machine.ensure()
    (root / "setup.cfg").unlink()
    with pytest.raises(environment.SetupError, match=r"lacks setup\.cfg"):
        machine.ensure()

    assert machine.steps == []


def test_the_environment_of_infra_holds_the_cdk_by_its_pins_and_no_engine(root, capsys):
    machine = Machine(root, environment.INFRA)

    assert machine.ensure() == ["venv", "pip", "pins"]
    assert [word for word in machine.commands[-1] if word.startswith("--") and "=" in word] == [
        f"--requirement={root / 'infra/requirements.lock.txt'}"
    ]
    assert "Creating .venv-infra with Python" in capsys.readouterr().err
    assert machine.ensure() == []
    assert not (root / ".venv").exists()


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


def test_a_run_that_waits_too_long_says_which_lock_is_held(tmp_path):
    path = tmp_path / "lock"

    late = environment.only_one(path, max_wait_s=120.0, sleep=lambda _: None)
    with environment.only_one(path), pytest.raises(environment.SetupError, match=r"for 2 minutes: .*lock"), late:
        pass


# Error messages


CAUSES = {
    "ERROR: Could not install packages due to an OSError: [Errno 28] No space left on device": "TMPDIR",
    "OSError: [WinError 112] There is not enough space on the disk": "TMPDIR",
    "The virtual environment was not created successfully because ensurepip is not available.": "python3-venv",
    "/usr/bin/python3: No module named venv": "python3-venv",
    "connection broken by 'NewConnectionError('<pip>: Failed to establish a new connection: [Errno 111]')'\n"
    "ERROR: No matching distribution found for numpy==2.4.6": "PIP_FIND_LINKS",
    "[Errno -3] Temporary failure in name resolution": "PIP_INDEX_URL",
    "pip._vendor.urllib3.exceptions.ReadTimeoutError: Read timed out.": "PIP_INDEX_URL",
    "ERROR: HTTP error 403 while getting numpy": "PIP_INDEX_URL",
    "Max retries exceeded (Caused by SSLError(SSLCertVerificationError('CERTIFICATE_VERIFY_FAILED')))": "PIP_CERT",
    "[Errno 13] Permission denied: '.venv'": "writable",
    "[Errno 30] Read-only file system: '.venv'": "writable",
    "[WinError 32] The process cannot access the file": "close programs",
    "ERROR: THESE PACKAGES DO NOT MATCH THE HASHES FROM THE REQUIREMENTS FILE.": "pip cache purge",
    "ERROR: No matching distribution found for torch==2.13.0": "no torch==2.13.0 for this machine",
}


def test_each_known_cause_has_one_sentence_with_a_hint_and_unknown_ones_are_not_guessed():
    for output, way_out in CAUSES.items():
        sentence = environment.explain(output)
        assert way_out in sentence
        assert ". " not in sentence
    assert environment.explain("error: metadata-generation-failed") == ""


def test_an_old_python_reports_the_required_version():
    for version in (3, 6, 15), (3, 10, 14), (2, 7, 18):
        with pytest.raises(environment.SetupError, match=r"needs 3\.11 or newer"):
            environment.require_python(version)
    for version in (3, 11, 0), (3, 14, 1), (4, 0, 0):
        environment.require_python(version)


@pytest.mark.parametrize(
    ("error", "exit_code", "said"),
    [
        (environment.SetupError("Free some space."), 1, "Free some space.\n"),
        (PermissionError(13, "Permission denied", ".venv"), 1, "No permission to write there: "),
        (FileExistsError(17, "File exists", ".venv"), 1, "System error ([Errno 17] File exists: '.venv')."),
        (KeyboardInterrupt(), 130, "Interrupted"),
    ],
)
def test_errors_are_shown_in_a_sentence_without_a_traceback(error, exit_code, said, capsys, monkeypatch):
    monkeypatch.setattr("signal.signal", lambda *_: None)

    def main(arguments):
        raise error

    assert environment.run_main(main) == exit_code
    assert capsys.readouterr().err.startswith(said)


def test_an_old_python_reads_the_scripts_far_enough_to_say_so():
    installed = {SCRIPTS / name for name in ("messages.py", "try_aws.py", "docs_names.py")}  # need installed packages
    for path in set(SCRIPTS.glob("*.py")) - installed:
        nodes = list(ast.walk(ast.parse(path.read_text(encoding="utf-8"), feature_version=(3, 6))))
        hints = [node.annotation for node in nodes if isinstance(node, (ast.arg, ast.AnnAssign))]
        hints += [node.returns for node in nodes if isinstance(node, ast.FunctionDef)]
        quoted = (ast.Name, ast.Constant, type(None))
        assert all(isinstance(hint, quoted) for hint in hints), "quote what 3.6 cannot compute"


# Environment of the programs in .venv


def test_children_see_their_own_packages_in_utf_8_and_without_colour_in_a_file():
    given = {"PATH": "/bin", "PYTHONPATH": "/elsewhere", "PYTHONHOME": "/elsewhere", "FORCE_COLOR": "1"}
    given["PYTHONDONTWRITEBYTECODE"] = "1"

    always = {"PATH": "/bin", "PYTHONUTF8": "1", "OMP_WAIT_POLICY": "PASSIVE"}

    assert environment.child_env(given, is_terminal=False) == always | {"NO_COLOR": "1"}
    assert environment.child_env(given, is_terminal=True) == always | {"FORCE_COLOR": "1"}


# demo.py


def test_options_that_the_demo_does_not_know_go_to_invoke(demo):
    options, passed_on = demo.parse(["A sentence.", "--seed", "3", "-o", "a.wav", "--checkpoint", "voice"])

    assert (options.text, options.output, options.checkpoint) == ("A sentence.", "a.wav", "voice")
    assert passed_on == ["--seed", "3"]


def test_the_demo_calls_its_own_server_like_aws(demo, tmp_path):
    output, checkpoint = tmp_path / "a.wav", ROOT / "tests" / "assets" / "s1_tiny"

    code = demo.main(["-A dash, and a sentence.", "-o", str(output), "--checkpoint", str(checkpoint), "--seed", "1"])

    assert code == 0
    assert output.read_bytes()[:4] == b"RIFF"


def test_a_demo_whose_server_does_not_start_says_why(demo, tmp_path, capsys):
    code = demo.main(["Hello.", "-o", str(tmp_path / "a.wav"), "--checkpoint", str(tmp_path / "none")])

    assert code != 0
    assert "is not a directory" in capsys.readouterr().err


# test.py


def test_pytest_runs_last_and_runs_gpu_tests_only_on_request(check):
    for arguments, marker in ([], check.EVERYWHERE), (["--gpu"], "gpu"):
        checks = check.checks(Path("python"), *check.parse([*arguments, "-k", "scheduler"]), is_new=not arguments)

        bytecode = [] if arguments else ["bytecode"]
        names = ["ruff check", "ruff format", "mypy", "mypy win32", "lint-imports", *bytecode, "pytest"]
        assert [name for name, _ in checks] == names
        together = () if marker == "gpu" else check.SIDE_BY_SIDE
        assert checks[-1][1] == ["python", "-m", "pytest", "-m", marker, *together, "-k", "scheduler"]


def test_a_mistyped_path_of_a_test_is_named(check, capsys):
    assert check.parse(["tests/test_scripts.py::test_x", "-x"])[1] == ["tests/test_scripts.py::test_x", "-x"]
    with pytest.raises(SystemExit):
        check.parse(["tests/codecz"])
    assert "tests/codecz does not exist" in capsys.readouterr().err


def test_checks_run_in_parallel_and_each_shows_its_output_and_result(check, capfd, tmp_path):
    meets = "import pathlib, sys, time; me, other, code = sys.argv[1:]; pathlib.Path(me).touch()\n"
    meets += "while not pathlib.Path(other).exists(): time.sleep(0.01)\nprint('met', flush=True); sys.exit(int(code))"
    one, other = str(tmp_path / "one"), str(tmp_path / "other")
    command = [sys.executable, "-c", meets]

    results = check.run_beside([("one", [*command, one, other, "0"]), ("other", [*command, other, one, "3"])])

    assert [(result.name, result.passed) for result in results] == [("one", True), ("other", False)]
    shown = capfd.readouterr().out
    assert "\n--- one\nmet\n" in shown.replace("\r\n", "\n")
    assert "\n--- other\nmet\n" in shown.replace("\r\n", "\n")


def test_infra_is_one_command_in_a_separate_environment(check, monkeypatch):
    made, ran = [], []
    monkeypatch.setattr(check, "node_version", lambda: "v22.20.2\n")
    monkeypatch.setattr(check.environment, "ensure", lambda _, recipe: made.append(recipe) or Path("python"))
    monkeypatch.setattr(check, "run_check", lambda name, command: ran.append(command) or check.Result(name, 1.0, True))

    assert check.main(["--infra", "-x"]) == 0

    assert made == [environment.INFRA]
    assert ran == [["python", "-m", "pytest", "-m", "infra", "--confcutdir=tests/infra", "tests/infra", "-x"]]


def test_infra_without_node_fails_instead_of_skipping(check, monkeypatch):
    for version in "", "v18.20.4\n", "something else":
        monkeypatch.setattr(check, "node_version", lambda version=version: version)
        with pytest.raises(environment.SetupError, match="Node 22 or newer"):
            check.main(["--infra"])


def test_the_summary_names_what_failed(check):
    good, bad = check.Result("mypy", 1.25, True), check.Result("pytest", 10.0, False)

    assert "All checks pass." in check.summary([good])
    assert check.summary([good, bad]).endswith(
        "mypy              1.2 s  pass\npytest           10.0 s  FAIL\nFailed: pytest."
    )


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
    **{f"requirements-{extra}.txt": ALL_LOCKS[:1] for extra in ("server", "aws", "hub")},
    **{f"requirements-{extra}.txt": ALL_LOCKS for extra in ("play", "replicas", "corpus", "wyoming", "mcp", "test")},
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
    for python in ("3.11", "3.12", "3.13")
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


def test_lock_files_omit_torchs_own_packages_and_those_of_other_locks(script):
    lock = script("lock")
    text = (
        "# head\n# more\nnumpy==1 \\\n    --hash=sha256:0\n    # via torch\ntorch==2 \\\n    --hash=sha256:1\n"
        "nvidia-nccl-cu13==2 ; sys_platform == 'linux'\nrich==3\njs==1 ; sys_platform == 'emscripten'\n"
    )

    assert lock.head(text) == "# head\n# more\n"
    assert lock.pins(text) == ["numpy", "torch", "nvidia-nccl-cu13", "rich", "js"]
    assert lock.kept(text, {"rich"}) == "numpy==1 \\\n    --hash=sha256:0\n    # via torch\n"


def test_a_requirement_whose_pin_does_not_name_its_file_is_found(script, monkeypatch):
    lock = script("lock")
    assert lock.main(["--check"]) == 0

    texts = {
        "a.txt": "one_x[extra]>=1\ntwo\n",
        "a.lock.txt": "one-x==1\n    # via two, -r a.txt\ntwo==1\n    # via b\n",
    }
    monkeypatch.setattr(lock, "read", lambda name: texts.get(name, ""))

    assert lock.unmarked(lock.Lock("a.lock.txt", ["a.txt"])) == [
        "a.lock.txt: two is not marked `via -r a.txt`; run scripts/lock.py."
    ]


def needs_of(name, machine):
    """Return the requirements of an installed package that apply to a machine; none if it is not installed."""
    return [need for need in requirements_of(name) if need.marker is None or need.marker.evaluate(machine)]


@cache
def requirements_of(name):
    try:
        return [Requirement(text) for text in metadata.requires(name) or []]
    except metadata.PackageNotFoundError:
        return []
