"""Files: where the course's own files are, and whether they are still as they were."""

import hashlib
from pathlib import Path

import minfer
from minfer.core.errors import MinferError

PARTS = ("phases/course.toml", "tests", "pyproject.toml")
GUARDED = ("tests", "pyproject.toml")  # and minfer itself


def course_root() -> Path:
    """The folder that holds phases and tests: that of this minfer, or the one that the command runs in.

    Raises `MinferError` where neither is a clone.
    """
    beside = Path(minfer.__file__).parents[1]
    for root in (beside, Path.cwd()):
        if all((root / part).exists() for part in PARTS):
            return root
    raise MinferError(
        f"the course (phases/, tests/) is neither in {beside}, where this minfer is, nor in {Path.cwd()}: "
        "clone minfer's repository, run pip install -e '.[course]' in it, or run this command from its folder"
    )


def exercises(root: Path) -> list[int]:
    """The phases that have tasks, in order."""
    return sorted(int(path.parent.name[5:]) for path in (root / "phases").glob("phase*/exercise.toml"))


def fingerprint(root: Path) -> str:
    """A hash of all that decides over a grade: the course's code, tests and configuration."""
    digest = hashlib.sha256()
    for path in (Path(minfer.__file__).parent, *(root / part for part in GUARDED)):
        for file in sorted(path.rglob("*.py")) if path.is_dir() else [path]:
            digest.update(f"{file.relative_to(path.parent)}\0".encode() + file.read_bytes())
    return digest.hexdigest()
