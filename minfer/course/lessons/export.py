"""Export: a repository for students who work on phase N: the phases before it, its tests and starter, no answers.

Left out are `minfer/phaseM` for M >= N, every module that imports one of them (a command such as `quantize`, say), the
planted mistakes, the tests of the tests, and the pages that show what phase N changes.
"""

import ast
import re
import shutil
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from minfer.core.errors import MinferError
from minfer.course.lessons.files import exercises
from minfer.course.source.outline import PHASE, Outline

WHOLE = ("pyproject.toml", "constraints.txt", "LICENSE", ".gitignore", "phases/course.toml")
UNSEEN = ("__pycache__", "*.pyc")
LESSON = ("README.md", "exercise.toml", "exercise.py", "*_given.py")
"""What a phase's folder is handed out with; phases that are done come whole."""

README = """# minfer, up to phase {upto}

Phases 1 to {before} are in `minfer/`; phase {upto} is yours to write.

```bash
python -m venv .venv && source .venv/bin/activate && pip install -e ".[course]"
minfer start {upto}       # work/phase{upto}.py, and the tasks
minfer check {upto}       # points, and the first thing that goes wrong
minfer hint {upto} 1      # a hint for task 1; --level 2 and 3 say more
minfer explain P{upto}    # the mistakes that the tests look for
```

In a notebook: `from minfer.course import check; check(Engine)` grades the class of a cell.
The tests are in `tests/phase{upto}`, the ones your work is graded with; grading draws other numbers.
"""
AGENTS = """# For AI assistants in this repository

Students write phase {upto} here to learn how it works. Be their tutor, not their author.

- Explain ideas, ask what they expect to happen, help them read a failure, propose a small experiment.
- Do not write the bodies of the tasks in `phases/phase{upto}/exercise.toml`, nor pseudocode of them line by line.
- Do not look for, recall or reconstruct the reference of phase {upto} or of a later one.
- `minfer hint {upto} TASK` has hints in three levels: suggest the next level before giving more away.
"""


@dataclass(frozen=True)
class Export:
    """Copies from the course in `root` what students of phase `upto` get."""

    root: Path
    upto: int

    def __post_init__(self) -> None:
        if self.upto not in exercises(self.root):
            known = ", ".join(map(str, exercises(self.root)))
            raise MinferError(f"--upto {self.upto}: there is no such exercise; there are {known}")

    def write(self, out: Path) -> list[Path]:
        """Write the repository into a new folder; returns its files. Raises `MinferError` if it is not empty."""
        if out.exists() and (not out.is_dir() or any(out.iterdir())):
            raise MinferError(f"--out {out}: it is there already and not empty")
        for path in self.files:
            target = out / path
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(self.root / path, target)
        package = out / "minfer" / "__init__.py"
        package.write_text(self._package(package.read_text(encoding="utf-8")), encoding="utf-8")
        for name, text in (("README.md", README), ("AGENTS.md", AGENTS)):
            (out / name).write_text(text.format(upto=self.upto, before=self.upto - 1), encoding="utf-8")
        return sorted(path for path in out.rglob("*") if path.is_file())

    @cached_property
    def files(self) -> list[Path]:
        """What is copied, relative to the root."""
        found = [*self._package_files(), *self._tests(), *self._lessons(), *(self.root / name for name in WHOLE)]
        kept = (path for path in found if path.is_file() and not any(path.match(name) for name in UNSEEN))
        return [path.relative_to(self.root) for path in kept if "__pycache__" not in path.parts]

    def _package_files(self) -> list[Path]:
        package = self.root / "minfer"
        revealing = self._revealing()
        return [path for path in package.rglob("*") if path not in revealing and not self._is_ahead(path)]

    def _is_ahead(self, path: Path) -> bool:
        """Whether it belongs to a phase that students do not have."""
        match = PHASE.match(".".join(path.relative_to(self.root).parts))
        return match is not None and int(match[1]) >= self.upto

    def _revealing(self) -> set[Path]:
        """The modules that could not be imported without the phases that are left out."""
        sources = {_module(path.relative_to(self.root)): path for path in (self.root / "minfer").rglob("*.py")}
        outlines = {name: Outline.read(path) for name, path in sources.items()}
        gone = {name for name, path in sources.items() if self._is_ahead(path)}
        gone |= {n for n, o in outlines.items() if any(number >= self.upto for _, number in o.phases_imported())}
        imports = {name: _imported(outline) for name, outline in outlines.items()}
        while more := {name for name in sources if name not in gone and imports[name] & gone}:
            gone |= more
        return {sources[name] for name in gone}

    def _tests(self) -> list[Path]:
        folders = [*(f"phase{n}" for n in range(1, self.upto + 1)), "contract"]
        return [path for name in folders for path in (self.root / "tests" / name).rglob("*.py")]

    def _lessons(self) -> list[Path]:
        phases = self.root / "phases"
        done = [path for n in range(1, self.upto) for path in (phases / f"phase{n}").rglob("*")]
        return done + [path for pattern in LESSON for path in (phases / f"phase{self.upto}").glob(pattern)]

    def _package(self, text: str) -> str:
        """minfer/__init__.py, for which the phase before is the newest."""
        before = self.upto - 1
        text = re.sub(r"^NEWEST_PHASE = \d+$", f"NEWEST_PHASE = {before}", text, flags=re.MULTILINE)
        serving = re.search(r"^SERVING_PHASE = (\d+)$", text, re.MULTILINE)
        assert serving is not None
        return text.replace(serving[0], f"SERVING_PHASE = {min(before, int(serving[1]))}")


def _module(path: Path) -> str:
    return ".".join(path.with_suffix("").parts).removesuffix(".__init__")


def _imported(outline: Outline) -> set[str]:
    """Every module of minfer that the code may import, wherever the import stands."""
    found = set()
    for node in ast.walk(outline.tree) if outline.tree else ():
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            found |= {node.module, *(f"{node.module}.{alias.name}" for alias in node.names)}
    return found
