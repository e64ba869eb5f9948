"""`minfer flatten`: a phase as one file without inheritance."""

from pathlib import Path
from typing import Annotated

import typer

from minfer.core.errors import OptionsError
from minfer.course.lectures.flatten import flatten as flattened


def flatten(
    phase: Annotated[int, typer.Argument(metavar="N", help="The phase.")],
    out: Annotated[Path | None, typer.Option("--out", "-o", help="Write it to this file.")] = None,
) -> None:
    """Phase N as one readable file that needs no other phase: with pytest tests/phaseN --engine FILE it passes."""
    text = flattened(phase)
    if out is None:
        print(text, end="")
        return
    if not out.absolute().parent.is_dir():
        raise OptionsError(f"--out {out}: there is no folder {out.parent}")
    out.write_text(text, encoding="utf-8")
    print(f"wrote {out}: {len(text.splitlines()):,} lines")
