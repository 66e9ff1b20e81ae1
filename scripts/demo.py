"""Speak a sentence: set up `.venv`, serve the voice as a local SageMaker endpoint, and invoke the endpoint.

Example: python scripts/demo.py "Any sentence." -o demo.wav

Needs Python 3.11 or newer, this checkout and, at the first run, network access to install packages. Without a
checkpoint, it uses the built-in voice. The server is `s1-mini serve --local-endpoint demo`, called with boto3
(`s1-mini endpoint invoke demo`).
"""

import argparse
import os
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Sequence
from pathlib import Path

import environment

ROOT = Path(__file__).resolve().parent.parent
CHECKPOINT_VARIABLE = "S1_MINI_CHECKPOINT_PATH"
ENDPOINT = "demo"
START_S = 300  # start timeout, enough for a large checkpoint


def main(arguments: "list[str]") -> int:
    """Speak the sentence into the file; return 0, or the exit code of the step that failed."""
    options, passed_on = parse(arguments)
    python = environment.ensure(ROOT)
    env = environment.child_env(os.environ, sys.stderr.isatty())
    env["PYTHONSAFEPATH"] = "1"  # do not import a random.py in the user's folder
    if options.checkpoint:
        env[CHECKPOINT_VARIABLE] = options.checkpoint
    port = free_port()
    env.update(aws_variables(port))
    verb = [str(python), "-m", "s1_mini"]
    environment.say(f"Starting a server for the endpoint {ENDPOINT} on port {port} …")
    serve = [*verb, "serve", "--host", "127.0.0.1", "--port", str(port), "--local-endpoint", ENDPOINT]
    with tempfile.TemporaryFile() as log:
        server = subprocess.Popen(serve, env=env, stdout=log, stderr=log)
        try:
            if not is_ready(server, port):
                server.wait()
                environment.say(f"The server ended or was not ready within {START_S} s. Its output:")
                log.seek(0)
                sys.stderr.write(log.read().decode(errors="replace"))
                return server.returncode or 1
            ask = [*verb, "endpoint", "invoke", "-o", options.output, *passed_on]
            return subprocess.call([*ask, "--", ENDPOINT, options.text], env=env)  # a text may begin with a dash
        finally:
            server.terminate()
            server.wait()


def free_port() -> int:
    """Return a free port."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def aws_variables(port: int) -> "dict[str, str]":
    """Return variables that point boto3 to the server on `port`; the credentials are placeholders."""
    return {
        "AWS_ENDPOINT_URL_SAGEMAKER_RUNTIME": f"http://127.0.0.1:{port}",
        "AWS_ACCESS_KEY_ID": "local",
        "AWS_SECRET_ACCESS_KEY": "local",
        "AWS_DEFAULT_REGION": "us-east-1",
    }


def is_ready(server: "subprocess.Popen[bytes]", port: int) -> bool:
    """Wait until the server is ready; return False if it ends or takes longer than `START_S`."""
    end = time.monotonic() + START_S
    while server.poll() is None and time.monotonic() < end:
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/ping", timeout=5):
                return True
        except (urllib.error.URLError, OSError):
            time.sleep(0.2)
    server.terminate()
    return False


def parse(arguments: "Sequence[str]") -> "tuple[argparse.Namespace, list[str]]":
    """Return the options of this script, and the remaining arguments, which `s1-mini endpoint invoke` gets."""
    parser = argparse.ArgumentParser(
        description="Set up .venv and generate speech from TEXT.",
        epilog="Options of `s1-mini endpoint invoke` may follow TEXT: python scripts/demo.py 'Hello.' --voice clara",
        allow_abbrev=False,
    )
    parser.add_argument("text", metavar="TEXT", help="the text to speak")
    parser.add_argument("-o", "--output", metavar="FILE", default="demo.wav", help="audio file to write [demo.wav]")
    parser.add_argument(
        "--checkpoint", metavar="DIR", help=f"directory, or name on the Hugging Face hub [{CHECKPOINT_VARIABLE}]"
    )
    return parser.parse_known_args(arguments)


if __name__ == "__main__":
    sys.exit(environment.run_main(main))
