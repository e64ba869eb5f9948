"""Scratch: a folder for a while, removed whatever is in it."""

import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

FORCED = (("chmod", "-R", "u+rwx"), ("rm", "-rf"))


@contextmanager
def scratch(prefix: str) -> Iterator[Path]:
    """A new folder, removed at the end as far as the system lets it be."""
    folder = Path(tempfile.mkdtemp(prefix=prefix))
    try:
        yield folder
    finally:
        remove(folder)


def remove(folder: Path) -> None:
    """Remove a folder that others have filled, maybe with folders closed to all, or nested deeper than a path is long.

    Those are left to the system's own commands: `shutil.rmtree` calls itself for each level, before Python 3.13.
    """
    with suppress(RecursionError):
        shutil.rmtree(folder, ignore_errors=True)
    for command in FORCED if folder.exists() else ():
        with suppress(OSError):  # there is no such command
            subprocess.run([*command, "--", folder], stdin=subprocess.DEVNULL, capture_output=True)
