"""Screens: what the author of an engine reads about a test that did not pass, at most one screenful each."""

import sysconfig
import traceback
from collections.abc import Sequence
from pathlib import Path

import minfer

MINFER = Path(minfer.__file__).parent
LIBRARIES = [Path(sysconfig.get_path(name)) for name in ("stdlib", "purelib", "platlib")]
FRAMES = 4  # of the student's own, the innermost
WIDTH = 160
SECTION = 1500  # characters shown of what a test printed


def heading(code: str, title: str, points: float) -> str:
    """The first line."""
    return f"{code}  {title}" + (f"  (0 of {points:.3g} points)" if points else "")


def exception_lines(error: BaseException, tests: Sequence[Path]) -> list[str]:
    """What was raised, and where in the student's own files; frames of minfer and of `tests` are left out."""
    frames = traceback.extract_tb(error.__traceback__)
    own = [frame for frame in frames if not _is_the_courses(Path(frame.filename), tests)]
    lines = [("raised", f"{type(error).__name__}: {_short(str(error))}")]
    lines += [
        ("at" if not i else "", f"{_name(frame)}, line {frame.lineno}, in {frame.name}:  {frame.line}")
        for i, frame in enumerate(own[-FRAMES:])
    ]
    if frames and frames[-1] not in own:
        last = frames[-1]
        place = "then" if own else "in"
        lines.append((place, f"{_name(last)}, line {last.lineno}, in {last.name}:  {last.line}"))
    return [f"  {key:<9} {value}" for key, value in lines]


def _is_the_courses(path: Path, tests: Sequence[Path]) -> bool:
    others = any(path.is_relative_to(folder) for folder in (MINFER, *tests, *LIBRARIES))
    return others or path.name.startswith("<frozen")


def _name(frame: traceback.FrameSummary) -> str:
    path = Path(frame.filename)
    return str(path.relative_to(MINFER.parent)) if path.is_relative_to(MINFER.parent) else path.name


def _short(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= WIDTH else line[: WIDTH - 1] + "…"


def shortened(sections: Sequence[tuple[str, str]]) -> list[tuple[str, str]]:
    """What a test printed, without its middle where it is long."""
    return [(name, _without_middle(text)) for name, text in sections]


def _without_middle(text: str) -> str:
    if len(text) <= SECTION:
        return text
    half = SECTION // 2
    return f"{text[:half]}\n… {len(text) - 2 * half:,} characters left out …\n{text[-half:]}"
