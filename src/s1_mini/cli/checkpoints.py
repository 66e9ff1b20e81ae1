"""`s1-mini convert`, `verify` and `random-checkpoint`: work on checkpoint directories."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from s1_mini.cli.verb import DEVICES, completing, engine_config, open_checkpoint
from s1_mini.exceptions import ParameterError
from s1_mini.families.base import CodecPrecision, Form, ModelPrecision
from s1_mini.families.registry import SHORT_NAMES, get_family

if TYPE_CHECKING:
    from s1_mini.weights.origin import Origin

Checkpoint = Annotated[
    Path, typer.Option("--checkpoint", help="Directory, or name on the Hugging Face hub.", show_default=False)
]


def convert(
    checkpoint: Checkpoint,
    output: Annotated[Path, typer.Option("--output", "-o", help="New directory to write.", show_default=False)],
    precision: Annotated[ModelPrecision, typer.Option(help="Number format of the model.")] = "keep",
    codec_precision: Annotated[
        CodecPrecision, typer.Option(help="Number format of the codec's large kernels.")
    ] = "float16",
    decode_only: Annotated[bool, typer.Option("--decode-only", help="Leave out what only references need.")] = False,
) -> None:
    """Write a checkpoint in compact form: safetensors, weight norm folded, dead buffers gone.

    Example: s1-mini convert --checkpoint openaudio-s1-mini -o s1-mini-compact
    """
    from s1_mini.packaging.write import convert_checkpoint

    directory = open_checkpoint(checkpoint).directory
    tell_origin(directory)
    sizes = convert_checkpoint(
        directory,
        output,
        precision=precision,
        codec_precision=codec_precision,
        decode_only=decode_only,
    )
    for name, size in sizes.items():
        typer.echo(f"{size:>14,}  {name}", err=True)


def tell_origin(directory: Path) -> Origin | None:
    """Print the origin of a checkpoint and what its licence forbids to stderr; return the origin."""
    from s1_mini.weights.origin import origin_of

    origin = origin_of(directory)
    if origin is not None:
        typer.echo(str(origin), err=True)
        if origin.caution:
            typer.echo(f"s1-mini: warning: {origin.caution}", err=True)
    return origin


def verify(
    checkpoint: Checkpoint,
    oracle: Annotated[
        Path,
        typer.Option(
            help="Reference tensors of this checkpoint, a .pt or .safetensors file; docs/ lists them by family.",
            show_default=False,
        ),
    ],
    tolerance: Annotated[float, typer.Option(help="Largest absolute difference allowed.")] = 1e-4,
    device: Annotated[
        str, typer.Option(help="Where to compute: auto, cpu, cuda, cuda:1, mps.", autocompletion=completing(*DEVICES))
    ] = "cpu",
) -> None:
    """Recompute an oracle's tensors and compare; exit code 0 only if all are within tolerance.

    Example: s1-mini verify --checkpoint s1_tiny --oracle s1_tiny/oracle.pt
    """
    engine_config(device=device)  # what is wrong is told before torch is loaded

    from rich.console import Console
    from rich.table import Table

    from s1_mini.checkpoint.verify import verify_checkpoint
    from s1_mini.exceptions import VerificationError

    directory = open_checkpoint(checkpoint).directory
    checks = list(verify_checkpoint(directory, oracle, tolerance=tolerance, device=device))
    table = Table("check", "largest difference", "tokens equal", "")
    for check in checks:
        difference = "" if check.difference is None else f"{check.difference:.1e}"
        agreement = "" if check.agreement is None else f"{check.agreement:.2%}"
        table.add_row(check.name, difference, agreement, "ok" if check.passed else "FAILED")
    Console().print(table)
    failed = [check.name for check in checks if not check.passed]
    if failed or not checks:
        raise VerificationError(f"{len(failed)} of {len(checks)} checks failed: {', '.join(failed)}")
    typer.echo(f"all {len(checks)} checks passed")


def random_checkpoint(
    directory: Annotated[Path, typer.Argument(metavar="DIRECTORY", help="New directory to write.", show_default=False)],
    family: Annotated[
        str,
        typer.Option(help=f"Which architecture: {', '.join(SHORT_NAMES)}.", autocompletion=completing(*SHORT_NAMES)),
    ] = next(iter(SHORT_NAMES)),
    size: Annotated[str, typer.Option(help="Which size; a wrong one is answered with those of the family.")] = "tiny",
    form: Annotated[Form, typer.Option(help="As published (.pth) or compact (safetensors).")] = "compact",
    seed: Annotated[int, typer.Option(min=0, help="Which random weights.")] = 0,
) -> None:
    """Write a checkpoint with random weights, for speed and plumbing. It speaks noise.

    Example: s1-mini random-checkpoint noise && s1-mini say "Hello" --checkpoint noise -o noise.wav
    """
    chosen = SHORT_NAMES.get(family)
    if chosen is None:
        raise ParameterError("family", f"{family!r} is none of {', '.join(SHORT_NAMES)}")
    found = get_family(chosen)
    if size not in found.random_sizes:
        allowed = "; ".join(f"{name}: {told}" for name, told in found.random_sizes.items())
        raise ParameterError("size", f"{size!r} is no size of {found.title} ({allowed})")
    found.write_random(directory, size=size, form=form, seed=seed)
    typer.echo(f"wrote {directory}", err=True)
