"""Where the course lies: `phases/` and `tests/`, which only a clone of the repository has."""

from pathlib import Path

import minfer
from minfer.core.errors import MinferError


def course_root() -> Path:
    """The folder that has `phases/` and `tests/`: that of this minfer, or the one that the command runs in.

    Raises `MinferError` where neither is a clone.
    """
    for root in (Path(minfer.__file__).parents[1], Path.cwd()):
        if (root / "phases" / "course.toml").is_file():
            return root
    raise MinferError(
        f"the course is not here: {Path.cwd()} has no phases/course.toml, and this minfer was installed without it; "
        "clone the repository and run this in it"
    )


def phases_folder() -> Path:
    """`phases/`. Raises `MinferError`."""
    return course_root() / "phases"
