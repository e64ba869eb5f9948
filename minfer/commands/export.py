"""`minfer export`: a repository for students."""

from pathlib import Path
from typing import Annotated

import typer

from minfer.course.lessons.export import Export
from minfer.course.lessons.files import course_root


def export(
    upto: Annotated[int, typer.Option(help="The phase that students write.")],
    out: Annotated[Path, typer.Option(help="The folder to write; new or empty.")],
) -> None:
    """Write a students' repository: earlier phases, the tests and the starter of --upto, and no answers."""
    files = Export(course_root(), upto).write(out)
    print(f"{out}: {len(files)} files; phases 1 to {upto - 1} complete, phase {upto} to be written")
