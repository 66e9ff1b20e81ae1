"""Try an endpoint on your AWS account: create the smallest one, invoke it, scale it, delete it, and print a report.

Example: python scripts/try_aws.py --image … --role … --artifact s3://my-bucket/1/model.tar.gz

Needs `pip install -e ".[server,aws]"` and the image, role and artifact of docs/deploy.md. It costs a few cents, because
an instance runs for about ten minutes. The audio itself is checked: container, sample rate, loudness, and that the
speed changes its duration. Requests that must be refused are also sent. The endpoint is also deleted after a failure or
Ctrl+C. The script changes nothing in S3, ECR and IAM. The default instance has no GPU and needs the image with
VARIANT=cpu.
"""

from __future__ import annotations

import argparse
import io
import re
import sys
import time
import uuid
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import soundfile

from s1_mini.aws import call
from s1_mini.aws.bidirectional import converse
from s1_mini.aws.clients import Clients
from s1_mini.aws.deployment import Deployment, Scaling
from s1_mini.aws.preflight import check_instance_types
from s1_mini.aws.stack import Stacks
from s1_mini.capacity.prices import HOURLY_USD, PRICE_REGION, PRICES_OF
from s1_mini.exceptions import DeploymentError, S1MiniError

TEXT = "Good morning. This is a trial."
WAV_HEADER_BYTES = 44
RATE = 16_000  # Hz, which no model has
SILENT = 0.003  # root mean square of full scale, -50 dB; speech has more
FAST = 2.0
FASTER = (0.4, 0.7)  # bounds of the duration with this speed, of that without
REFUSED: tuple[dict[str, Any], ...] = ({"text": ""}, {"speed": 9}, {"voice": "nobody-has-this-name"}, {"pitch": 1})


@dataclass
class Report:
    """Result and duration of each step."""

    lines: list[str] = field(default_factory=list)
    has_failed: bool = False

    def run(self, title: str, step: Callable[[], str | None]) -> bool:
        """Run a step; return whether it succeeded."""
        begin = time.monotonic()
        try:
            outcome = step() or "ok"
        except S1MiniError as error:
            outcome, self.has_failed = f"FAILED: {error}", True
            return False
        finally:
            line = f"{title:22} {time.monotonic() - begin:7.1f} s  {outcome}"
            self.lines.append(line)
            print(line, flush=True)
        return True


def main(arguments: Sequence[str]) -> int:
    """Create, try and delete the endpoint, and print a report; return 0 if every step succeeded."""
    options = parse(arguments)
    name, report = new_name(), Report()
    given = {"image": options.image, "role": options.role, "artifact": options.artifact}
    price = HOURLY_USD.get(options.instance_type)
    try:
        deployment = Deployment.of(name=name, instance_type=[options.instance_type], **given)
        check_instance_types(deployment)
        stacks = Stacks(options.region, options.profile)
    except S1MiniError as error:
        print(f"try_aws: {error}", file=sys.stderr)
        return 1
    hourly = "an unknown price" if price is None else f"{price:.2f} USD"
    print(f"Endpoint {name} on {options.instance_type}: {hourly} per hour ({PRICE_REGION}, {PRICES_OF})")
    if not options.yes and input("Create it? [y/N] ").strip().lower() != "y":
        return 1
    begin, is_created = time.monotonic(), False
    try:
        is_created = report.run("create", lambda: stacks.create(deployment))
        if is_created:
            try_endpoint(stacks, name, report)
    finally:
        is_deleted = report.run("delete", lambda: delete(stacks, name, is_created=is_created))
    hours = (time.monotonic() - begin) / 3600
    print(f"\nReport for {name} in {stacks.clients.region}")
    print("\n".join(report.lines))
    cost = "unknown" if price is None else f"at most {hours * price:.2f} USD"
    print(f"cost of the instance: {cost} ({hours * 60:.0f} minutes)")
    if not is_deleted:
        print(f"The endpoint may still cost money: run `s1-mini endpoint delete {name}`", file=sys.stderr)
    return int(report.has_failed)


def parse(arguments: Sequence[str]) -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name in ("image", "role", "artifact"):
        parser.add_argument(f"--{name}", required=True, help="as for `s1-mini endpoint create`")
    parser.add_argument("--instance-type", default="ml.c5.xlarge")
    parser.add_argument("--region")
    parser.add_argument("--profile")
    parser.add_argument("--yes", action="store_true", help="do not ask before creating")
    return parser.parse_args(arguments)


def new_name() -> str:
    """Return a name that no other endpoint has, because the endpoint is deleted at the end."""
    return f"s1-mini-trial-{uuid.uuid4().hex[:8]}"


def try_endpoint(stacks: Stacks, name: str, report: Report) -> None:
    """Invoke the endpoint in each mode, and scale it."""
    clients = stacks.clients
    body: dict[str, Any] = {"text": TEXT, "format": "wav", "seed": 1}
    whole, streamed = call.Invocation(name, body), call.Invocation(name, body | {"stream": True})
    report.run("invoke", lambda: measure([call.invoke(clients, whole)]))
    report.run("invoke, streamed", lambda: measure(call.stream(clients, streamed)))
    report.run("invoke, bidirectional", lambda: measure(converse(clients, whole, [TEXT])))
    for form in ("flac", "mp3", "ogg"):
        other = call.Invocation(name, body | {"format": form, "sample_rate": RATE})
        report.run(f"invoke, {form}", partial(try_format, clients, other, form))
    report.run("speed", lambda: compare_speeds(clients, whole))
    for change in REFUSED:
        wrong = call.Invocation(name, body | change)
        report.run(f"refuses {next(iter(change))}", partial(refusal, clients, wrong))
    report.run("autoscale", lambda: None if stacks.autoscale(name, Scaling(maximum=2)) else "no changes")
    report.run("describe", lambda: str(stacks.describe(name)["status"]))


def measure(parts: Iterable[bytes]) -> str:
    """Return size, time to the first audio and the audio's figures. Raises the errors of `check`."""
    begin, first_s, audio = time.monotonic(), 0.0, b""
    for part in parts:
        audio += part
        if not first_s and len(audio) > WAV_HEADER_BYTES:
            first_s = time.monotonic() - begin
    return f"{len(audio):,} bytes, first audio after {first_s:.2f} s, {check(audio)}"


class Sound(NamedTuple):
    """Figures of audio."""

    rate: int
    seconds: float
    loudness: float  # root mean square of full scale

    def __str__(self) -> str:
        return f"{self.seconds:.2f} s at {self.rate} Hz, RMS {self.loudness:.3f}"


def check(audio: bytes, container: str = "wav", rate: int | None = None) -> Sound:
    """Decode audio. Raises `DeploymentError` for another container or rate, and for silence."""
    try:
        with soundfile.SoundFile(io.BytesIO(audio)) as file:
            found, wave = file.format.lower(), file.read(dtype="float32")
            sound = Sound(file.samplerate, len(wave) / file.samplerate, float(np.sqrt(np.mean(wave**2))))
    except (soundfile.LibsndfileError, ValueError):
        raise DeploymentError(f"the response is not audio: {audio[:100]!r}") from None
    if found != container or sound.rate != (rate or sound.rate):
        raise DeploymentError(f"the audio is {found} at {sound.rate} Hz, not {container} at {rate or sound.rate} Hz")
    if not sound.seconds or sound.loudness < SILENT:
        raise DeploymentError(f"the audio is silent: {sound}")
    return sound


def try_format(clients: Clients, invocation: call.Invocation, container: str) -> str:
    """Return the figures of audio in another format and at `RATE`. Raises the errors of `check`."""
    return str(check(call.invoke(clients, invocation), container, RATE))


def compare_speeds(clients: Clients, plain: call.Invocation) -> str:
    """Return how the speed changes the duration. Raises `DeploymentError` if it does not."""
    fast = call.Invocation(plain.name, {**plain.body, "speed": FAST})
    slow_s, fast_s = (check(call.invoke(clients, each)).seconds for each in (plain, fast))
    figures = f"{slow_s:.2f} s, with speed {FAST:g} {fast_s:.2f} s"
    if not FASTER[0] < fast_s / slow_s < FASTER[1]:
        raise DeploymentError(f"the speed has no effect: {figures}")
    return figures


def refusal(clients: Clients, wrong: call.Invocation) -> str:
    """Return the error of the container. Raises `DeploymentError` if it answers with audio, or fails otherwise."""
    try:
        audio = call.invoke(clients, wrong)
    except DeploymentError as error:
        if re.search(r"the container answered 4\d\d", str(error)) is None:
            raise
        return f"refused: {error}"[:100]
    raise DeploymentError(f"the request was answered with {len(audio):,} bytes instead of an error")


def delete(stacks: Stacks, name: str, *, is_created: bool) -> str | None:
    """Delete the endpoint; after a failed creation, there may be nothing to delete. Raises `DeploymentError`."""
    try:
        stacks.delete(name)
    except DeploymentError as error:
        if is_created or f"endpoint {name} does not exist" not in str(error):
            raise
        return "nothing to delete"
    return None


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
