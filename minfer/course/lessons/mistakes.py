"""Mistakes: the catalogue's pages, one a code, from `mistakes/phaseN.md`, where each begins `## P3-02 title`."""

import difflib
import re
from dataclasses import dataclass
from functools import lru_cache
from importlib.resources import files

from minfer.core.errors import MinferError

HEADING = re.compile(r"^## (P\d+-\d+) (.+)$", re.MULTILINE)


@dataclass(frozen=True)
class Page:
    """One mistake, in Markdown."""

    code: str
    title: str
    body: str

    @property
    def text(self) -> str:
        """The whole page, with the command that looks for this mistake only."""
        phase, name = self.code[1:].split("-")[0], self.code.replace("-", "_")
        tests = "tests/phaseN" if phase == "0" else f"tests/phase{phase}"
        return (
            f"## {self.code} {self.title}\n\n{self.body}\n\nCheck it alone: `pytest {tests} --engine FILE.py -k {name}`"
        )


@lru_cache
def pages() -> dict[str, Page]:
    """All pages by code, in the order of phase and number."""
    found: dict[str, Page] = {}
    for file in (files("minfer.course.lessons") / "mistakes").iterdir():
        parts = HEADING.split(file.read_text(encoding="utf-8"))[1:]
        for code, title, body in zip(parts[::3], parts[1::3], parts[2::3], strict=True):
            found[code] = Page(code, title, body.strip())
    return {code: found[code] for code in sorted(found, key=_number)}


def page(code: str) -> Page:
    """The page of a code, in whatever case it is written. Raises `MinferError` for a code that there is not."""
    wanted = code.upper().replace("_", "-")
    if wanted not in pages():
        close = ", ".join(difflib.get_close_matches(wanted, pages(), n=3))
        raise MinferError(f"there is no page {code}" + (f": {close}?" if close else ": minfer explain lists them all"))
    return pages()[wanted]


def of_phase(name: str) -> list[Page]:
    """The pages of "P3" or "3"."""
    phase = name.upper().removeprefix("P")
    found = [page for page in pages().values() if page.code.startswith(f"P{phase}-")]
    if not found:
        raise MinferError(f"there are no pages of phase {phase}: minfer explain lists them all")
    return found


def _number(code: str) -> tuple[int, int]:
    phase, number = code[1:].split("-")
    return int(phase), int(number)
