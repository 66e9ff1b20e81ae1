"""`s1-mini convert`, `verify`, `random-checkpoint`, `align`, `compile` and `package`: checkpoints and artifacts."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from s1_mini.cli.verb import DEVICES, Checkpoint, DeviceName, completing, engine_config, named_checkpoint, print_table
from s1_mini.exceptions import ConfigurationError, PackageError, ParameterError, VerificationError
from s1_mini.extras import require
from s1_mini.families.base import CodecPrecision, Conversion, Form, ModelPrecision
from s1_mini.families.registry import SHORT_NAMES, get_family

if TYPE_CHECKING:
    from s1_mini.aws.place import S3Place
    from s1_mini.weights.hub import Origin

Source = Annotated[Path, typer.Option("--checkpoint", help="Directory, or name on the Hugging Face hub.")]
Precision = Annotated[ModelPrecision, typer.Option(help="Number format of the model.")]
Codec = Annotated[CodecPrecision, typer.Option(help="Number format of the codec's large weights.")]
SHOWN_HEADS = 5
DecodeOnly = Annotated[bool, typer.Option("--decode-only", help="Omit the encoder, which only cloning needs.")]


def convert(
    checkpoint: Source,
    output: Annotated[Path, typer.Option("--output", "-o", help="New directory to write.")],
    precision: Precision = "keep",
    codec_precision: Codec = "float16",
    decode_only: DecodeOnly = False,
) -> None:
    """Write a checkpoint in compact form: safetensors, with weight norm folded and unused buffers removed.

    Example: s1-mini convert --checkpoint openaudio-s1-mini -o s1-mini-compact
    """
    from s1_mini.packaging.write import convert_checkpoint

    directory = named_checkpoint(checkpoint).directory
    tell_origin(directory)
    sizes = convert_checkpoint(directory, output, Conversion(precision, codec_precision, decode_only))
    for name, size in sizes.items():
        typer.echo(f"{size:>14,}  {name}", err=True)


def tell_origin(directory: Path) -> Origin | None:
    """Print the origin of a checkpoint and the restrictions of its licence to stderr; return the origin."""
    from s1_mini.weights.hub import origin_of

    origin = origin_of(directory)
    if origin is not None:
        typer.echo(str(origin), err=True)
        if origin.caution:
            typer.echo(f"s1-mini: warning: {origin.caution}", err=True)
    return origin


def verify(
    checkpoint: Source,
    oracle: Annotated[
        Path,
        typer.Option(
            help="Reference tensors of this checkpoint: a .pt or .safetensors file; docs/ lists the tensors by family."
        ),
    ],
    tolerance: Annotated[float, typer.Option(help="Largest absolute difference allowed.")] = 1e-4,
    device: DeviceName = "cpu",
) -> None:
    """Compare a checkpoint with reference tensors (an oracle); exit with code 0 only if all checks pass.

    Example: s1-mini verify --checkpoint s1_tiny --oracle s1_tiny/oracle.pt
    """
    engine_config(device=device)  # report wrong settings before torch is loaded

    from s1_mini.checkpoint.verify import verify_checkpoint

    directory = named_checkpoint(checkpoint).directory
    checks = list(verify_checkpoint(directory, oracle, tolerance=tolerance, device=device))
    rows = [
        (
            check.name,
            "" if check.difference is None else f"{check.difference:.1e}",
            "" if check.agreement is None else f"{check.agreement:.2%}",
            "ok" if check.passed else "FAILED",
        )
        for check in checks
    ]
    print_table(rows, "check", "largest difference", "tokens equal", "")
    failed = [check.name for check in checks if not check.passed]
    if failed or not checks:
        raise VerificationError(f"{len(failed)} of {len(checks)} checks failed: {', '.join(failed)}")
    typer.echo(f"all {len(checks)} checks passed")


def random_checkpoint(
    directory: Annotated[Path, typer.Argument(metavar="DIRECTORY", help="New directory to write.")],
    family: Annotated[
        str,
        typer.Option(help=f"Architecture: {', '.join(SHORT_NAMES)}.", autocompletion=completing(*SHORT_NAMES)),
    ] = next(iter(SHORT_NAMES)),
    size: Annotated[
        str, typer.Option(help="Size. If you give an unknown name, the error lists the family's sizes.")
    ] = "tiny",
    form: Annotated[
        Form,
        typer.Option(
            help="published: the publisher's form, such as model.pth; compact: the form that `s1-mini convert` writes."
        ),
    ] = "compact",
    seed: Annotated[int, typer.Option(min=0, help="Seed of the random weights.")] = 0,
) -> None:
    """Write a checkpoint with random weights, for benchmarks and integration tests. Its output is noise.

    Example: s1-mini random-checkpoint noise && s1-mini say "Hello" --checkpoint noise -o noise.wav
    """
    chosen = SHORT_NAMES.get(family)
    if chosen is None:
        raise ParameterError("family", f"must be one of {', '.join(SHORT_NAMES)}, not {family!r}")
    found = get_family(chosen)
    if size not in found.random_sizes:
        allowed = "; ".join(f"{name}: {text}" for name, text in found.random_sizes.items())
        raise ParameterError("size", f"{size!r} is not a size of {found.title} ({allowed})")
    found.write_random(directory, size=size, form=form, seed=seed)
    typer.echo(f"wrote {directory}", err=True)


def align(
    checkpoint: Checkpoint = None,
    writes: Annotated[bool, typer.Option("--write", help="Write the result to config.json.")] = False,
    text: Annotated[
        list[str] | None,
        typer.Option(metavar="TEXT", help="A sentence to speak; may be repeated. [eight English sentences]"),
    ] = None,
    voice: Annotated[str | None, typer.Option(help="Voice that speaks. [the default one]")] = None,
    save: Annotated[
        Path | None,
        typer.Option(metavar="FOLDER", help="New folder for the audio files, and words.csv with the times."),
    ] = None,
    words: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Table of reference times, like words.csv: the command prints the differences and fits the shifts.",
        ),
    ] = None,
    device: DeviceName = "auto",
) -> None:
    """Find the attention head that gives word times; exit with code 0 only if a head follows the text.

    Example: s1-mini align --checkpoint my-voice --write
    """
    config = engine_config(device=device, compile="false", max_batch_size=1)
    import json
    from dataclasses import asdict

    from s1_mini.checkpoint.align import SENTENCES, calibrate, compare
    from s1_mini.packaging.write import find_own_config, write_alignment

    directory = named_checkpoint(checkpoint).directory
    if writes:
        find_own_config(directory)  # fails before the slow calibration
    sentences = text or SENTENCES

    def progress(number: int, seconds: float) -> None:
        typer.echo(f"sentence {number} of {len(sentences)}: {seconds:.1f} s", err=True)

    config = config.model_copy(update={"checkpoint_path": directory})
    candidates, found = calibrate(config, sentences, progress, voice)
    rows = [
        (
            *map(str, (each.layer, each.head)),
            *(f"{value:.2f}" for value in each.measures),
            f"too small: {', '.join(each.measures.faults)}" if each.measures.faults else "follows the text",
        )
        for each in candidates[:SHOWN_HEADS]
    ]
    print_table(rows, "layer", "head", *candidates[0].measures._fields, "")
    if found is None:
        raise VerificationError(
            f"no attention head of {directory} follows the text, so the checkpoint cannot report word times"
        )
    if words is not None:
        expected = found.read_words(words)
        found = found.fitted(expected)
        typer.echo(compare(found.words(), expected))
    if save is not None:
        found.save(save)
    typer.echo(f'"alignment": {json.dumps(asdict(found.head))}')
    if writes:
        write_alignment(directory, found.head)
        typer.echo(f"wrote {directory / 'config.json'}", err=True)


def compile_checkpoint(
    output: Annotated[Path, typer.Option("--output", "-o", help="Folder of the compile cache; it may exist.")],
    checkpoint: Checkpoint = None,
    device: DeviceName = "auto",
) -> None:
    """Compile a checkpoint for this machine's GPU or CPU, so that later starts are fast.

    The folder is for S1_MINI_COMPILE_CACHE_PATH and `s1-mini package --compile-cache`. Other settings, such as the
    precision, are S1_MINI_* variables, which must be the same at later starts.

    Example: s1-mini compile --checkpoint openaudio-s1-mini -o compiled
    """
    config = engine_config(checkpoint_path=checkpoint, device=device, compile="true", compile_cache_path=output)

    from s1_mini.packaging.compile_cache import VARIABLES, cache_key

    if named := [variable for variable in VARIABLES if os.environ.get(variable)]:
        raise ConfigurationError(f"{named[0]} names another compile cache; unset it")
    directory = named_checkpoint(config.checkpoint_path).directory

    from s1_mini.bench.workload import tone
    from s1_mini.engine import ProductionTTSEngine

    begun = time.perf_counter()
    with ProductionTTSEngine(config.model_copy(update={"checkpoint_path": directory})) as engine:
        if engine.description.voice.clones:  # the first reference compiles the encoder
            engine.generate(
                "Hello.", reference_audio=tone(engine.sample_rate), reference_text="Hello.", max_new_tokens=2
            )
        kernels = engine.health_check()["kernels"]
    if kernels["value"] == "torch":
        raise ConfigurationError(f"nothing to compile: {kernels['reason']}")
    typer.echo(f"compiled {output} for {cache_key()} in {time.perf_counter() - begun:.0f} s", err=True)


Layout = Literal["archive", "prefix"]


def package(
    checkpoint: Checkpoint = None,
    output: Annotated[Path | None, typer.Option("--output", "-o", help="New file or folder to write.")] = None,
    voices: Annotated[
        Path | None, typer.Option(help="Folder of voices (NAME.safetensors) to add to the checkpoint's own.")
    ] = None,
    layout: Annotated[
        Layout, typer.Option(help="archive: one .tar.gz; prefix: a folder of files for an uncompressed S3 prefix.")
    ] = "archive",
    precision: Precision = "keep",
    codec_precision: Codec = "float16",
    decode_only: DecodeOnly = False,
    compile_cache: Annotated[
        Path | None, typer.Option(help="Compile cache to include (S1_MINI_COMPILE_CACHE_PATH).")
    ] = None,
    compile_key: Annotated[
        str | None, typer.Option(help="GPU and torch that the cache was built for. [this machine's]")
    ] = None,
    upload: Annotated[
        str | None, typer.Option(metavar="S3_URL", help="Upload the artifact to s3://bucket/prefix.")
    ] = None,
    artifact: Annotated[Path | None, typer.Option(help="Upload this existing artifact.")] = None,
    kms_key: Annotated[str | None, typer.Option(help="KMS key that encrypts the upload.")] = None,
    check: Annotated[
        Path | None, typer.Option(metavar="ARTIFACT", help="Test this artifact as a container would run it.")
    ] = None,
    device: Annotated[
        str | None, typer.Option(help="Device for --check. [auto]", autocompletion=completing(*DEVICES))
    ] = None,
) -> None:
    """Package a checkpoint for an endpoint, reproducibly.

    Example: s1-mini package --checkpoint openaudio-s1-mini --output model.tar.gz
    """
    from s1_mini.aws.place import S3Place

    if output is None and artifact is None and check is None:
        raise ConfigurationError(
            "specify a new file or folder with --output, or an existing artifact with --artifact or --check"
        )
    if output is not None:
        _check_new(output, layout)
    if output is not None and artifact is not None:
        raise ConfigurationError(
            "--output writes a new artifact, --artifact names an existing one; use only one of them"
        )
    if artifact is not None and upload is None:
        raise ConfigurationError("--artifact requires --upload s3://bucket/prefix")
    place = None if upload is None else S3Place.parse(upload)
    if place is not None:
        require("aws", "--upload")
    if check is not None:
        require("server", "--check")
        engine_config(device=device)
    if output is not None:
        _write(
            output,
            layout,
            checkpoint,
            Conversion(precision, codec_precision, decode_only),
            voices=voices,
            compile_cache=compile_cache,
            compile_key=compile_key,
        )
    if check is not None:
        _check(check, device)
    source = artifact or output
    if place is not None and source is not None:
        _send(source, place, kms_key)


def _check_new(output: Path, layout: Layout) -> None:
    """Raise an error for the output before the checkpoint is loaded, which takes seconds."""
    from s1_mini.weights.write import check_new_directory, check_new_file

    if layout == "prefix":
        check_new_directory(output)
    elif not output.name.endswith(".tar.gz"):
        raise ConfigurationError(f"--output {output} does not end in .tar.gz; for a folder, add --layout prefix")
    else:
        check_new_file(output)


def _write(output: Path, layout: Layout, checkpoint: Path | None, conversion: Conversion, **choices: Any) -> None:
    directory = named_checkpoint(checkpoint).directory

    from s1_mini.packaging.write import lay_out, write_archive, write_prefix

    origin = tell_origin(directory)
    members = lay_out(directory, conversion, **choices)
    write = write_archive if layout == "archive" else write_prefix
    with shown_progress("packaging", sum(member.size for member in members)) as progress:
        manifest = write(members, output, origin=origin, progress=progress)
    for name, content in manifest.files.items():
        typer.echo(f"{content.size:>14,}  {name}", err=True)
    typer.echo(f"wrote {output}; SHA-256 of the content: {manifest.content_sha256}", err=True)


def _check(artifact: Path, device: str | None) -> None:
    from s1_mini.sagemaker.contract import check_contract

    failed = []
    for step in check_contract(artifact, device=device):
        typer.echo(f"{'ok' if step.passed else 'FAILED':>6}  {step.name}: {step.details}")
        failed += [] if step.passed else [step.name]
    if failed:
        raise PackageError(f"{artifact} would fail as an endpoint: {', '.join(failed)}")


def _send(source: Path, place: S3Place, kms_key: str | None) -> None:
    from s1_mini.aws.clients import Clients
    from s1_mini.aws.failures import explained
    from s1_mini.packaging.verify import verify_archive
    from s1_mini.sagemaker.upload import Uploader, UploadError, about_sending

    with explained(about_sending(source, place), UploadError):
        clients = Clients()
        uploader = Uploader(clients["s3"], kms_key, region=clients.region)
    if source.is_file():
        verify_archive(source)
    size = sum(path.stat().st_size for path in (source.rglob("*") if source.is_dir() else [source]) if path.is_file())
    with shown_progress("sending", size) as progress:
        try:
            location = uploader.send(source, place, progress)
        except UploadError as error:
            again = f"s1-mini package --artifact {source} --upload {place}"
            raise UploadError(f"{error}; to retry: {again}") from None
    typer.echo(location)


@contextmanager
def shown_progress(what: str, total_bytes: int) -> Iterator[Callable[[int], None]]:
    """Show a progress bar on a terminal's stderr; yield the callback for the number of bytes done."""
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn, TransferSpeedColumn

    console = Console(stderr=True)
    columns = (TextColumn(what), BarColumn(), DownloadColumn(), TransferSpeedColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console, disable=not console.is_terminal, transient=True) as bar:
        task = bar.add_task(what, total=total_bytes)
        yield lambda done: bar.advance(task, done)
