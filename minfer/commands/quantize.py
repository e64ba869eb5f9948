"""`minfer quantize`: a checkpoint in fewer bits."""

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.filesize import decimal

from minfer.core.checkpoint.shapes import is_random
from minfer.core.errors import CheckpointError
from minfer.core.hub import resolve
from minfer.core.hub.pull import default_progress
from minfer.core.stored_quantization import GROUP_SIZES, SCHEMES, StoredQuantization
from minfer.phase6.names import find_scheme
from minfer.phase6.saving import Saving


def quantize(
    model: Annotated[str, typer.Argument(help="tiny, a folder or a pulled name.")],
    out: Annotated[Path, typer.Argument(help="The folder to write; it must not exist.")],
    to: Annotated[str, typer.Option(help=f"The weights of linear layers: {', '.join(SCHEMES)}.")],
    group_size: Annotated[
        int, typer.Option(help=f"int4: columns that share a scale: {', '.join(map(str, GROUP_SIZES))}.")
    ] = GROUP_SIZES[0],
    quantize_head: Annotated[
        bool, typer.Option("--quantize-head", help="The head too; a tied one gets a weight of its own.")
    ] = False,
) -> None:
    """Write MODEL with its linear layers in fewer bits; phases from 6 on load it like any other."""
    if is_random(model):
        raise CheckpointError(f"{model} has no files: load it with quantization={to} instead")
    find_scheme(to, group_size)
    saving = Saving.of(resolve(model), StoredQuantization(to, group_size, quantize_head))
    with default_progress() as progress:
        task = progress.add_task(f"quantising to {saving.scheme}", total=1.0)
        saving.save(out, lambda fraction: progress.update(task, completed=fraction))
    console = Console(highlight=False, soft_wrap=True)
    before, after = saving.checkpoint.nbytes, saving.nbytes_in_all
    per = saving.nbytes / saving.parameters
    console.print(f"{out}: {decimal(after)}, {after / before:.2f} of {decimal(before)}", markup=False)
    console.print(
        f"{len(saving.quantized)} linear layers, {saving.parameters:,} weights: {per:.4f} bytes each, "
        f"{per / 4:.3f} of float32 ({saving.scheme.formula})",
        markup=False,
    )
