"""Submissions: what a folder of students' work holds, and the file of each that is graded."""

import errno
import shutil
from dataclasses import dataclass
from pathlib import Path

from minfer.core.errors import MinferError
from minfer.course.grader.loading import LOADERS
from minfer.course.marks.report import printable

IGNORED = {"__pycache__", "__MACOSX"}
NOT_THEIRS = {"minfer", "tests", "phases", "site-packages", ".venv", "venv", ".git", "__pycache__"}
LEFT_OUT = {*IGNORED, ".git", ".venv", "venv"}  # of a copy
FULL = (errno.ENOSPC, errno.EDQUOT)  # what is no submission's fault
MOST_BYTES = 200 * 2**20


class Unusable(Exception):
    """A submission in which nothing can be graded; the message says why."""


@dataclass(frozen=True)
class Submission:
    """One student's file or folder."""

    name: str
    path: Path

    def engine(self, phase: int) -> Path:
        """The file that is graded: itself, or the shallowest phaseN file of the folder. Raises `Unusable`."""
        if self.path.is_file():
            if self.path.suffix not in LOADERS:
                raise Unusable(f"{self.path.name} is neither {' nor '.join(LOADERS)}")
            return self.path
        files = sorted(_files(self.path), key=lambda path: (len(path.parts), path.suffix != ".py", path))
        files = [path for path in files if path.stem != f"phase{phase}_given"]
        named = [path for path in files if path.stem == f"phase{phase}"]
        if not named and len(files) != 1:
            there = ", ".join(str(path.relative_to(self.path)) for path in files[:5]) or "nothing"
            raise Unusable(f"there is no phase{phase}.py or phase{phase}.ipynb in it (but {there})")
        return (named or files)[0]

    def copy(self, folder: Path) -> Path:
        """A copy of it in `folder`; links stay links. Raises `Unusable` if it is too large, or no copy can be made."""
        files = (path for path in self.path.rglob("*") if not LEFT_OUT & {*path.relative_to(self.path).parts})
        try:
            size = sum(path.lstat().st_size for path in [self.path, *files])
            if size > MOST_BYTES:
                raise Unusable(f"it has {size / 2**20:,.0f} MB, more than {MOST_BYTES // 2**20}")
            if self.path.is_file():
                return Path(shutil.copy2(self.path, folder / self.path.name))
            ignored = shutil.ignore_patterns(*LEFT_OUT)
            return Path(shutil.copytree(self.path, folder / self.path.name, symlinks=True, ignore=ignored))
        except shutil.Error as error:  # of some of a folder's files: a pipe, or one that may not be read
            raise Unusable(f"it cannot be copied: {error.args[0][0][2]}") from error
        except OSError as error:
            if error.errno in FULL:
                raise
            raise Unusable(f"it cannot be copied: {error}") from error


def _files(folder: Path) -> list[Path]:
    found = (path for suffix in LOADERS for path in folder.rglob(f"*{suffix}"))
    return [path for path in found if path.is_file() and not NOT_THEIRS & {*path.relative_to(folder).parts}]


def find(folder: Path) -> list[Submission]:
    """What there is, by name; files and folders that begin with a dot or an underscore are nobody's."""
    if not folder.is_dir():
        raise MinferError(f"{folder} is no folder: give one that holds a file or a folder for each submission")
    paths = sorted(path for path in folder.iterdir() if path.name[0] not in "._" and path.name not in IGNORED)
    if not paths:
        raise MinferError(f"{folder} is empty: it should hold a file or a folder for each submission")
    stems = [path.stem if path.is_file() else path.name for path in paths]
    names = [path.name if stems.count(stem) > 1 else stem for path, stem in zip(paths, stems, strict=True)]
    return [Submission(printable(name), path) for name, path in zip(names, paths, strict=True)]
