"""Submissions: what a folder of students' work holds, and the file of each that is graded."""

import errno
import hashlib
import os
import shutil
from collections import Counter
from collections.abc import Iterator, Sequence
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
MOST_FILES, DEEPEST = 20_000, 64
LONGEST = 200  # bytes of a name, so that a folder can have it


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
        try:
            found = [path for path in walk(self.path, NOT_THEIRS) if path.suffix in LOADERS and path.is_file()]
        except OSError as error:
            raise Unusable(f"it cannot be read: {error.strerror}") from error
        files = sorted(found, key=lambda path: (len(path.parts), path.suffix != ".py", path))
        files = [path for path in files if path.stem != f"phase{phase}_given"]
        named = [path for path in files if path.stem == f"phase{phase}"]
        if not named and len(files) != 1:
            there = ", ".join(str(path.relative_to(self.path)) for path in files[:5]) or "nothing"
            raise Unusable(f"there is no phase{phase}.py or phase{phase}.ipynb in it (but {there})")
        engine = (named or files)[0]
        if not engine.resolve().is_relative_to(self.path.resolve()):
            raise Unusable(f"{engine.relative_to(self.path)} is a link to what is not in the submission")
        return engine

    def copy(self, folder: Path) -> Path:
        """A copy of it in `folder`; links stay links. Raises `Unusable` if it is too large, or no copy can be made."""
        try:
            size = self.path.stat().st_size + sum(path.lstat().st_size for path in walk(self.path, LEFT_OUT))
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


def walk(folder: Path, without: set[str]) -> Iterator[Path]:
    """All that is in a folder, but for what has one of these names; links are not followed, a file holds nothing.

    Raises `Unusable` if it has no end that is worth waiting for, `OSError` for a part that cannot be read.
    """
    left, count = [folder] if folder.is_dir() else [], 0
    while left:
        for path in left.pop().iterdir():
            count += 1
            if count > MOST_FILES or len(path.relative_to(folder).parts) > DEEPEST:
                raise Unusable(f"it has more than {MOST_FILES:,} files, or folders more than {DEEPEST} deep")
            if path.name not in without:
                yield path
                if path.is_dir() and not path.is_symlink():
                    left.append(path)


def find(folder: Path) -> list[Submission]:
    """What there is, by name; files and folders that begin with a dot or an underscore are nobody's."""
    if not folder.is_dir():
        raise MinferError(f"{folder} is no folder: give one that holds a file or a folder for each submission")
    paths = sorted(path for path in folder.iterdir() if path.name[0] not in "._" and path.name not in IGNORED)
    if not paths:
        raise MinferError(f"{folder} is empty: it should hold a file or a folder for each submission")
    return [Submission(name, path) for name, path in zip(_names(paths), paths, strict=True)]


def _names(paths: Sequence[Path]) -> list[str]:
    """For each a name that no other one has, and that a folder can have: a file's without its ending if possible."""
    stems = [path.stem if path.is_file() else path.name for path in paths]
    taken = Counter(stems) + Counter(path.name for path, stem in zip(paths, stems, strict=True) if stem != path.name)
    names = [_shown(stem if taken[stem] == 1 else path.name) for path, stem in zip(paths, stems, strict=True)]
    return [
        name if names.count(name) == 1 and len(name.encode()) <= LONGEST else _shortened(name, path)
        for name, path in zip(names, paths, strict=True)
    ]


def _shown(name: str) -> str:
    return printable(name).replace("\n", r"\n").replace("\t", r"\t")  # a name is no two lines of a table


def _shortened(name: str, path: Path) -> str:
    begins = name.encode()[: LONGEST - 9].decode(errors="ignore")
    return f"{begins}~{hashlib.sha256(os.fsencode(path.name)).hexdigest()[:8]}"
