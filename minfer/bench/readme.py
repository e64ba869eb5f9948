"""Puts a generated table into a document between two marks, so that no figure in it is written by hand."""

from pathlib import Path

from minfer.core.errors import MinferError

BEGIN, END = "<!-- bench: made by minfer bench show, do not edit -->", "<!-- /bench -->"


def insert(document: Path, text: str) -> None:
    """Replace what stands between the marks. Raises `MinferError` if they are not there."""
    document.write_text(inserted(document.read_text(encoding="utf-8"), text), encoding="utf-8")


def inserted(document: str, text: str) -> str:
    """`document` with `text` between its marks."""
    before, begin, rest = document.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise MinferError(f"no place for the table: the document needs the lines {BEGIN} and {END}")
    return f"{before}{BEGIN}\n\n{text}\n\n{END}{after}"
