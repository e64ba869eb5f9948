"""Puts a generated table into a document between two marks, so that no figure in it is written by hand."""

from pathlib import Path

from minfer.core.errors import MinferError


def marks(kind: str = "bench") -> tuple[str, str]:
    """Where the table of a kind of ledger begins and ends."""
    return f"<!-- {kind}: made by minfer bench show, do not edit -->", f"<!-- /{kind} -->"


BEGIN, END = marks()


def insert(document: Path, text: str, kind: str = "bench") -> None:
    """Replace what stands between the marks. Raises `MinferError` if they are not there."""
    document.write_text(inserted(document.read_text(encoding="utf-8"), text, kind), encoding="utf-8")


def inserted(document: str, text: str, kind: str = "bench") -> str:
    """`document` with `text` between the marks of its kind."""
    first, last = marks(kind)
    before, begin, rest = document.partition(first)
    _, end, after = rest.partition(last)
    if not begin or not end:
        raise MinferError(f"no place for the table: the document needs the lines {first} and {last}")
    return f"{before}{first}\n\n{text}\n\n{last}{after}"
