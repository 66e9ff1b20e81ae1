"""Set up `.venv` (pinned packages and this checkout, editable) and `.venv-infra` (the CDK). Standard library only.

demo.py and test.py call it on a machine that has only Python. An error that the user can fix is a `SetupError`, whose
message says how; `run_main` turns it into exit code 1. The scripts parse on Python 3.6, so that an old Python prints
the required version instead of a `SyntaxError`.

An interrupted run leaves its step in `.venv/s1_mini-setup.json`, and the next run repairs what that step may have left
half done. The lock is a file lock of the system: it ends with its process and is never stale.
"""

import hashlib
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO, TYPE_CHECKING, NamedTuple

if sys.platform == "win32":
    import msvcrt
else:
    import fcntl

if TYPE_CHECKING:
    Run = Callable[[Sequence[str], Path | None], int]  # command, file its output is appended to → exit code

MIN_PYTHON = (3, 11)
DOWNLOAD_MB = {"base": 250, "test": 200, "infra": 95}  # with torch for CPU

LOCK_NAME = "s1_mini-setup.lock"
STATE_NAME = "s1_mini-setup.json"
LOG_NAME = "install.log"

CHECKOUT = "s1_mini"  # the part that is this checkout; every other part is a lock file
PIP_LOCK = "requirements-pip.lock.txt"
METADATA = (
    "setup.cfg",
    "requirements.txt",
    *(
        f"requirements-{extra}.txt"
        for extra in (
            "server",
            "aws",
            "play",
            "replicas",
            "hub",
            "corpus",
            "ray",
            "vllm",
            "wyoming",
            "mcp",
            "sdk",
            "c2pa",
            "av",
            "otel",
        )
    ),
)
# --no-compile: Python compiles a module when it is first imported, and most modules never are.
PIP_OPTIONS = ("--no-input", "--disable-pip-version-check", "--progress-bar", "off", "--no-compile")
PIP_HAS_BEGUN = "Installing collected packages"  # until pip prints this it has changed nothing

# Pattern of pip's output, and the error message; the first match counts.
CAUSES = (
    (
        r"No space left|\[Errno 28\]|Disk quota exceeded|\[Errno 122\]|\[WinError 112\]|not enough space",
        "The disk is full: free about 3 GB (also for pip's temporary folder, which TMPDIR sets), then run this again",
    ),
    (
        r"ensurepip is not available|No module named '?(venv|ensurepip|pip)\b",
        "This Python lacks venv or pip: install them (Debian and Ubuntu: `apt install python3-venv`), "
        "then run this again",
    ),
    (
        r"CERTIFICATE_VERIFY_FAILED|\bSSLError",
        "The TLS certificate of the package index cannot be verified: set PIP_CERT to your network's certificate "
        "bundle, then run this again",
    ),
    (
        r"NewConnectionError|Failed to establish a new connection|name resolution|NameResolutionError|getaddrinfo"
        r"|ConnectTimeout|Read ?time(d ?)?out|ProtocolError|ProxyError|Network is unreachable"
        r"|Connection (refused|reset)|HTTP error \d+",
        "The package index cannot be reached: connect to the network, or set PIP_INDEX_URL to an index or "
        "PIP_FIND_LINKS to a folder of wheels that you can reach, then run this again",
    ),
    (
        r"Permission denied|\[Errno (1|13|30)\]|Read-only file system|Access is denied|\[WinError (5|32)\]",
        "No permission to write there: close programs that use .venv, make the checkout and .venv writable for you, "
        "or copy the checkout to a folder in which you can write, then run this again",
    ),
    (
        r"DO NOT MATCH THE HASHES",
        "A downloaded package does not match its hash in the lock file: set PIP_INDEX_URL to PyPI or an exact mirror, "
        "empty pip's cache (`pip cache purge`), then run this again",
    ),
    (
        r"No matching distribution found for (\S+)",
        r"The package index has no \1 for this machine: use 64-bit Python 3.11 to 3.14 on Linux, Windows or "
        "macOS 14 or newer with Apple silicon, or set PIP_INDEX_URL or PIP_FIND_LINKS to an index or a folder with it",
    ),
)


class Recipe(NamedTuple):
    """Contents of an environment."""

    folder: str
    needed_bytes: int
    parts: "Mapping[str, str]"  # part → its lock file, with hashes; the first part is always installed
    unhashed: str  # a lock file of the first part without hashes, installed after the others; none if empty
    with_checkout: bool


ENGINE = Recipe(
    folder=".venv",
    needed_bytes=3 * 10**9,  # 1.1 GB installed with torch for CPU, as much again while pip unpacks it, and some room
    parts={"base": "requirements.lock.txt", "test": "requirements-test.lock.txt"},
    unhashed="requirements-torch.lock.txt",
    with_checkout=True,
)
INFRA = Recipe(
    folder=".venv-infra",
    needed_bytes=15 * 10**8,  # 650 MB installed
    parts={"infra": "infra/requirements.lock.txt"},
    unhashed="",
    with_checkout=False,
)


class SetupError(Exception):
    """The environment cannot be set up; the message says how to fix it."""


class State(NamedTuple):
    """Installed parts of `.venv`, and the unfinished step (empty if none)."""

    root: str
    step: str
    installed: "Mapping[str, str]"  # part → fingerprint of the files it was installed from


def ensure(root: Path, extras: "Sequence[str]" = (), recipe: Recipe = ENGINE) -> Path:
    """Install the recipe and the `extras`; return the environment's Python. Raises `SetupError`, `OSError`."""
    return Environment(root, recipe=recipe).ensure(extras)


def run_main(main: "Callable[[list[str]], int]") -> int:
    """Run a script's `main` and return its exit code; expected errors print one sentence instead of a traceback."""
    try:
        require_python(sys.version_info[:3])
        signal.signal(signal.SIGTERM, signal.default_int_handler)  # also ends the child processes, like Ctrl-C
        return main(sys.argv[1:])
    except SetupError as error:
        say(str(error))
        return 1
    except OSError as error:
        say(f"{explain(str(error)) or 'System error'} ({error}).")
        return 1
    except KeyboardInterrupt:
        say("Interrupted. Run this again to continue.")
        return 130


def require_python(version: "Sequence[int]") -> None:
    """Raise `SetupError` if `version` is too old to run the engine."""
    if tuple(version[:2]) < MIN_PYTHON:
        given, needed = _dotted(version), _dotted(MIN_PYTHON)
        raise SetupError(
            f"This is Python {given}; s1_mini needs {needed} or newer. Install it and start this script with it, for "
            f"example `python{needed} {sys.argv[0]}`."
        )


def say(sentence: str) -> None:
    """Print a progress or error message to standard error, unbuffered; standard output is for results."""
    print(sentence, file=sys.stderr, flush=True)


def child_env(environ: "Mapping[str, str]", is_terminal: bool) -> "dict[str, str]":
    """Return environment variables for a program in `.venv`: only its own packages, UTF-8, colors only on a terminal.

    Bytecode is always cached; otherwise, each process would compile torch for six seconds.
    """
    dropped = {"PYTHONHOME", "PYTHONPATH", "PYTHONDONTWRITEBYTECODE"}
    if not is_terminal:
        dropped |= {"FORCE_COLOR", "CLICOLOR_FORCE", "PY_COLORS", "MYPY_FORCE_COLOR"}
    env = {name: value for name, value in environ.items() if name not in dropped}
    env["PYTHONUTF8"] = "1"
    env.setdefault("OMP_WAIT_POLICY", "PASSIVE")  # waiting threads do not compete for cores with other programs
    if not is_terminal:
        env["NO_COLOR"] = "1"
    return env


def explain(output: str) -> str:
    """Return the message for a known error, without its full stop; empty if the cause is unknown."""
    for pattern, sentence in CAUSES:
        match = re.search(pattern, output)
        if match:
            return match.expand(sentence)
    return ""


class Environment:
    """The environment of one checkout. Tests replace `run` and `free_bytes`."""

    def __init__(
        self,
        root: Path,
        run: "Run | None" = None,
        free_bytes: "Callable[[Path], int] | None" = None,
        recipe: Recipe = ENGINE,
    ) -> None:
        self.root = root
        self.recipe = recipe
        self.venv = root / recipe.folder
        self.python = self.venv.joinpath(*(["Scripts", "python.exe"] if sys.platform == "win32" else ["bin", "python"]))
        self.log = self.venv / LOG_NAME
        self._run = run or _run_logged
        self._free_bytes = free_bytes or _free_bytes

    def ensure(self, extras: "Sequence[str]" = ()) -> Path:
        """Install the recipe's first part, the `extras` and the checkout; return the environment's Python.

        Raises `SetupError` if files are missing, the disk is too full, a step fails or another run holds the lock.
        """
        wanted = self.fingerprints(extras)
        if not self.is_ready(wanted):
            self.venv.mkdir(exist_ok=True)
            with only_one(self.venv / LOCK_NAME):
                if not self.is_ready(wanted):  # the previous holder of the lock may have installed everything
                    self._build(wanted)
        return self.python

    def fingerprints(self, extras: "Sequence[str]") -> "dict[str, str]":
        """Return, by part, a hash of the Python version and the files that determine what is installed.

        Raises `SetupError` if a file is missing.
        """
        files = {part: self._files(part) for part in (next(iter(self.recipe.parts)), *extras)}
        if self.recipe.with_checkout:
            files[CHECKOUT] = [self.root / name for name in METADATA]
        needed = [self.root / PIP_LOCK, *(path for paths in files.values() for path in paths)]
        missing = [path.name for path in needed if not path.is_file()]
        if missing:
            raise SetupError(
                f"{self.root} lacks {', '.join(missing)}: restore the files or clone the repository again."
            )
        return {part: _fingerprint(paths) for part, paths in files.items()}

    def is_ready(self, wanted: "Mapping[str, str]") -> bool:
        """Return whether everything is installed: reads a few small files and starts one Python."""
        state = self._read_state()
        return all(state.installed.get(part) == wanted[part] for part in wanted) and not self._fault(state)

    def _fault(self, state: State) -> str:
        """Return why the environment must be rebuilt, or an empty string. A working venv made by hand is kept."""
        if not (self.venv / "pyvenv.cfg").exists():
            return "it is not a virtual environment"
        if state.step == "create" or (state.step == "install" and PIP_HAS_BEGUN in self._last_step()):
            return "an earlier run did not finish"
        if state.root not in ("", str(self.root)):
            return "the checkout was moved"
        if not self._python_works():
            return f"its Python is broken or not {_dotted(sys.version_info[:2])}"
        return ""

    def _python_works(self) -> bool:
        test = f"import sys, pip; sys.exit(sys.version_info[:2] != {tuple(sys.version_info[:2])})"
        try:
            return self._run([str(self.python), "-c", test], None) == 0
        except OSError:  # missing, or a program for another system
            return False

    def _build(self, wanted: "Mapping[str, str]") -> None:
        state = self._read_state()
        fault = self._fault(state)
        self.log.write_text("", encoding="utf-8")  # after `_fault`, which reads the old log
        if fault:
            state = State(str(self.root), "create", {})
            self._write_state(state)
            self._clear(fault)
            self._create()
        elif not state.installed:
            say(f"{self.recipe.folder} was not made by this script: other versions in it, also of torch, are replaced.")
        self._install(wanted, state._replace(root=str(self.root)))

    def _clear(self, fault: str) -> None:
        """Remove the environment, except the lock, state and log of this run."""
        found = [path for path in self.venv.iterdir() if path.name not in (LOCK_NAME, STATE_NAME, LOG_NAME)]
        if found:
            say(f"Removing the old {self.recipe.folder} ({fault}) …")
        for path in found:
            if path.is_dir() and not path.is_symlink():
                shutil.rmtree(str(path))
            else:
                path.unlink()

    def _create(self) -> None:
        name, needed_bytes, free_bytes = self.recipe.folder, self.recipe.needed_bytes, self._free_bytes(self.venv)
        if free_bytes < needed_bytes:
            raise SetupError(
                f"{name} needs about {needed_bytes / 1e9:.2g} GB of disk space and {free_bytes / 1e9:.1f} GB are free: "
                f"free some space, or make {name} a link to a folder on a larger disk."
            )
        say(f"Creating {name} with Python {_dotted(sys.version_info[:3])} …")
        # The base Python, because this script may run in the Python of the venv that was just removed.
        python = getattr(sys, "_base_executable", None) or sys.executable
        self._perform([python, "-m", "venv", str(self.venv)])
        pip = ["--require-hashes", f"--requirement={self.root / PIP_LOCK}"]
        self._perform([str(self.python), "-m", "pip", "install", *PIP_OPTIONS, *pip])

    def _install(self, wanted: "Mapping[str, str]", state: State) -> None:
        """Install the pins if a lock file has changed, and the checkout if its metadata has."""
        stale = [part for part in wanted if state.installed.get(part) != wanted[part]]
        stale_pins = [part for part in stale if part != CHECKOUT]
        if stale_pins:
            say(self._announcement(stale_pins))
            locks = [f"--requirement={self.root / self.recipe.parts[part]}" for part in wanted if part != CHECKOUT]
            gained = {part: wanted[part] for part in stale_pins}
            unhashed = self.recipe.unhashed if next(iter(self.recipe.parts)) in stale_pins else ""
            state = self._pip_install(["--require-hashes", *locks], state, {} if unhashed else gained)
            if unhashed:  # last, because its dependencies are then installed, with hashes
                state = self._pip_install([f"--requirement={self.root / unhashed}"], state, gained)
        if CHECKOUT in stale:
            say("Installing s1_mini from this checkout …")
            editable = ["--no-deps", "--no-build-isolation", f"--editable={self.root}"]
            self._pip_install(editable, state, {CHECKOUT: wanted[CHECKOUT]})

    def _announcement(self, parts: "Sequence[str]") -> str:
        lines = [line for part in parts for file in self._files(part) for line in file.read_text("utf-8").splitlines()]
        count = sum("==" in line for line in lines if not line.startswith("#"))
        size = f"about {sum(DOWNLOAD_MB.get(part, 0) for part in parts)} MB"
        if "base" in parts and sys.platform == "linux":
            size += ", or several GB with CUDA"
        if "base" in parts:
            size += "; a few minutes the first time"
        return f"Installing {count} packages ({size}) …"

    def _pip_install(self, arguments: "Sequence[str]", state: State, gained: "Mapping[str, str]") -> State:
        self._write_state(state._replace(step="install"))
        self._perform([str(self.python), "-m", "pip", "install", *PIP_OPTIONS, *arguments])
        state = State(state.root, "", {**state.installed, **gained})
        self._write_state(state)
        return state

    def _perform(self, command: "Sequence[str]") -> None:
        """Run one step with its output in the log. Raises `SetupError` with the cause if it fails."""
        with self.log.open("a", encoding="utf-8") as log:
            log.write(f"\n$ {' '.join(command)}\n")
        code = self._run(command, self.log)
        if code:
            output = self._last_step()
            end = "\n".join(output.splitlines()[-15:])
            sentence = (
                explain(output)
                or f"{end}\nA step of the setup failed (exit code {code}); the end of its output is above"
            )
            raise SetupError(f"{sentence} (log: {self.log}).")

    def _last_step(self) -> str:
        """Return the last command in the log, with its output."""
        try:
            return self.log.read_text(encoding="utf-8", errors="replace").rpartition("\n$ ")[2]
        except FileNotFoundError:
            return ""

    def _read_state(self) -> State:
        try:
            return State(**json.loads((self.venv / STATE_NAME).read_text(encoding="utf-8")))
        except (FileNotFoundError, ValueError, TypeError):  # never written, or not by us
            return State("", "", {})

    def _write_state(self, state: State) -> None:
        """Replace the state atomically."""
        draft = self.venv / (STATE_NAME + ".new")
        draft.write_text(json.dumps(state._asdict(), indent=1), encoding="utf-8")
        draft.replace(self.venv / STATE_NAME)

    def _files(self, part: str) -> "list[Path]":
        is_first = part == next(iter(self.recipe.parts))
        names = [self.recipe.parts[part], self.recipe.unhashed if is_first else ""]
        return [self.root / name for name in names if name]


@contextmanager
def only_one(path: Path, max_wait_s: float = 3600.0, sleep: "Callable[[float], None]" = time.sleep) -> "Iterator[None]":
    """Hold the lock file at `path`. Raises `SetupError` if another run holds it for longer than `max_wait_s`."""
    waited_s = 0.0
    with path.open("a") as file:
        while not _try_lock(file):
            if waited_s == 0:
                say(f"Another run is setting up {path.parent.name}; waiting for it …")
            if waited_s >= max_wait_s:
                minutes = f"{waited_s / 60:.0f} minutes"
                raise SetupError(
                    f"Another run has been setting up {path.parent.name} for {minutes}: end it, or wait until "
                    f"it finishes (lock: {path})."
                )
            sleep(0.25)
            waited_s += 0.25
        yield


def _try_lock(file: "IO[str]") -> bool:
    """Take the lock unless another process holds it; closing the file or ending the process releases it."""
    try:
        if sys.platform == "win32":
            file.seek(0)
            msvcrt.locking(file.fileno(), msvcrt.LK_NBLCK, 1)
        else:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except (BlockingIOError, PermissionError):
        return False
    return True


def _run_logged(command: "Sequence[str]", log: "Path | None") -> int:
    """Run a command with its output appended to `log`, or dropped, and return its exit code."""
    env = child_env(os.environ, is_terminal=False)
    env["PIP_USER"] = "0"  # the user's pip settings may enable --user, which fails in a venv
    with open(str(log or os.devnull), "ab") as output:
        return subprocess.call(command, stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT, env=env)


def _free_bytes(folder: Path) -> int:
    return shutil.disk_usage(str(folder)).free


def _fingerprint(paths: "Sequence[Path]") -> str:
    digest = hashlib.sha256(_dotted(sys.version_info[:2]).encode())
    for path in paths:
        digest.update(path.read_bytes() + b"\0")
    return digest.hexdigest()


def _dotted(version: "Sequence[int]") -> str:
    return ".".join(str(number) for number in version)
