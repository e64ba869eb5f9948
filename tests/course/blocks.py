"""What a lesson has in fenced blocks, and what it links to.

```bash                     run, line by line, in an empty folder
```bash no-run: REASON      not run; `minfer` lines are still parsed
```python                   run, all of a lesson in one namespace
```text                     follows a block that is run: its lines are in the output, in this order
```text measured: WHERE     times and the like, which another run gives differently
"""

import re
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
FENCE = re.compile(r"^```(\w*)[ \t]*(.*?)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")
HEADING = re.compile(r"^#+ (.*)$", re.MULTILINE)
ANCHOR = re.compile(r'<a id="([^"]+)"')


@dataclass(frozen=True)
class Block:
    """One fenced block: its language, what else its first line says, its text."""

    language: str
    note: str
    text: str

    @property
    def commands(self):
        """Of bash: its lines, those that end in a backslash joined, without comments and empty ones."""
        lines = self.text.replace("\\\n", " ").splitlines()
        return [line.partition(" #")[0].strip() for line in lines if line.strip() and not line.startswith("#")]


def blocks(path):
    """All fenced blocks of a file."""
    return [Block(*found) for found in FENCE.findall(path.read_text(encoding="utf-8"))]


def links(path):
    """Where the file's links and pictures point to, outside of fenced blocks."""
    return LINK.findall(prose(path))


def prose(path):
    """The file without its fenced blocks."""
    return FENCE.sub("", path.read_text(encoding="utf-8"))


def anchors(path):
    """What a link to the file can have behind its #: headings as GitHub names them, and ids."""
    text = prose(path)
    named = {re.sub(r"[^\w\- ]", "", heading.lower()).strip().replace(" ", "-") for heading in HEADING.findall(text)}
    return named | set(ANCHOR.findall(text))


def lessons():
    """The lessons, in their order, then the pages about them."""
    made = sorted((ROOT / "phases").glob("phase*/README.md"), key=lambda path: int(path.parent.name[5:]))
    return [*made, ROOT / "phases" / "README.md", ROOT / "README.md"]


def name(path):
    """Of a page, for a test's id."""
    return str(path.relative_to(ROOT).parent).replace("phases/", "") or "README"
