"""From what a user names to the class that is graded."""

import difflib
import importlib
import importlib.util
import linecache
import sys
import traceback
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from types import ModuleType

from minfer.course.grader.guards import LOAD_SECONDS, Forbidden, import_guards
from minfer.course.grader.refusals import (
    Refused,
    refuse_ancestors,
    refuse_later_phases,
    refuse_misspelt_hooks,
    refuse_nothing_new,
    refuse_syntax_error,
)
from minfer.course.source.notebook import SUFFIX, NotANotebook
from minfer.course.source.outline import Outline

CLASS = "Engine"


@dataclass(frozen=True)
class Target:
    """`FILE.py[:Class]`, `NOTEBOOK.ipynb[:Class]`, `module:Class`, or a FOLDER, whose `phaseN` file is meant."""

    spec: str
    where: str
    class_name: str = CLASS

    @classmethod
    def parse(cls, spec: str) -> "Target":
        """Split at the last colon, unless it is a drive's."""
        where, colon, name = spec.rpartition(":")
        if not colon or not name.isidentifier():
            where, name = spec, CLASS
        return cls(spec, where, name)

    @property
    def is_file(self) -> bool:
        """Whether a file is meant, not a module."""
        return Path(self.where).suffix in LOADERS

    def at(self, phase: int) -> "Target":
        """Of a folder its file for the phase, else the target itself. Raises `Refused` if there is none."""
        folder = Path(self.where)
        if not folder.is_dir():
            return self
        wanted = [folder / f"phase{phase}{suffix}" for suffix in LOADERS]
        files = sorted(path for path in folder.iterdir() if path.suffix in LOADERS and path.is_file())
        found = [path for path in wanted if path.is_file()] or (files if len(files) == 1 else [])
        if not found:
            there = ", ".join(path.name for path in files) or "no Python file and no notebook"
            names = " or ".join(path.name for path in wanted) if phase else "one file for each of tests/phaseN"
            raise Refused(f"--engine {self.spec}: the folder has no {names} (there: {there})")
        return replace(self, where=str(found[0]))

    def path(self) -> Path:
        """The source file. Raises `Refused` if there is none."""
        path = Path(self.where) if self.is_file else self._module_path()
        if not path.is_file():
            here = f" (in {Path.cwd()})" if not path.is_absolute() else ""
            raise Refused(f"--engine {self.spec}: there is no file {path}{here}")
        return path

    def _module_path(self) -> Path:
        if Path(self.where).exists() or "/" in self.where:
            kinds = ", ".join(f"FILE{suffix}" for suffix in LOADERS)
            raise Refused(f"--engine {self.spec}: give {kinds} with an optional :Class, a folder, or module:Class")
        try:
            found = importlib.util.find_spec(self.where)
        except (ImportError, ValueError):
            found = None
        if found is None or found.origin is None:
            raise Refused(f"--engine {self.spec}: there is no module {self.where}; a file needs its ending, .py")
        return Path(found.origin)

    @property
    def is_reference(self) -> bool:
        """Whether it is minfer's own: then there is nothing to refuse."""
        return self.where.split(".")[0] == "minfer"

    @property
    def sha(self) -> str:
        """The short hash of the source. Raises `Refused`."""
        return self.outline().sha

    def outline(self) -> Outline:
        """What the source says about itself. Raises `Refused`."""
        path = self.path()
        try:
            return Outline.read(path)
        except NotANotebook as error:
            raise Refused(f"{path}: {error}") from error

    def describe(self) -> str:
        """In words: which class, where, which version of the file, on which base."""
        outline = self.outline()
        found = outline.find_class(self.class_name)
        place = f"{outline.place(found.lineno)}, " if found else ""
        base = f", base {outline.base_of(found)}" if found else ""
        what = "the REFERENCE " if self.is_reference else ""
        return f"{what}{self.where}:{self.class_name} ({place}sha {outline.sha}{base})"

    def read(self, phase: int) -> None:
        """Look at the source, to be graded as `phase`, without running it. Raises `Refused`."""
        if not self.is_reference:
            outline = self.outline()
            refuse_syntax_error(outline)
            refuse_later_phases(outline, phase)

    def load(self, phase: int, seconds: float = LOAD_SECONDS) -> type:
        """The class, to be graded as `phase`; its file may take `seconds` to import. Raises `Refused`."""
        if self.is_reference:
            return _class_in(importlib.import_module(self.where), self)
        self.read(phase)
        outline = self.outline()
        try:
            with import_guards(phase, seconds):
                module = LOADERS[outline.path.suffix](outline.path) if self.is_file else self._import()
        except Forbidden as error:
            raise Refused(f"{outline.path}{_line_in(outline, error)} {error}") from error
        except KeyboardInterrupt:
            raise
        except BaseException as error:  # SystemExit, and pytest's own outcomes
            where = _line_in(outline, error)
            raise Refused(f"{outline.path}{where} fails while it is imported: {_one_line(error)}") from error
        engine_cls = _class_in(module, self)
        refuse_ancestors(engine_cls, phase, outline.path)
        refuse_misspelt_hooks(engine_cls, outline)
        refuse_nothing_new(engine_cls, outline.path)
        return engine_cls

    def _import(self) -> ModuleType:
        sys.modules.pop(self.where, None)
        return importlib.import_module(self.where)


def import_file(path: Path) -> ModuleType:
    """Run a Python file as a module of its own; files beside it can be imported by it."""
    folder = str(path.resolve().parent)
    if folder not in sys.path:
        sys.path.append(folder)
    spec = importlib.util.spec_from_file_location(f"graded_{path.stem}", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses and pickling look a class's module up there
    spec.loader.exec_module(module)
    return module


def import_notebook(path: Path) -> ModuleType:
    """Run what a notebook defines as a module; its lines can be shown in tracebacks."""
    outline = Outline.read(path)
    assert outline.tree is not None
    module = ModuleType(f"graded_{path.stem}")
    module.__file__ = str(path)
    sys.modules[module.__name__] = module
    linecache.cache[str(path)] = (len(outline.text), None, outline.text.splitlines(keepends=True), str(path))
    exec(compile(outline.tree, str(path), "exec"), vars(module))
    return module


LOADERS: dict[str, Callable[[Path], ModuleType]] = {".py": import_file, SUFFIX: import_notebook}
"""A file's ending -> how to make a module of it."""


def _class_in(module: ModuleType, target: Target) -> type:
    found = getattr(module, target.class_name, None)
    if isinstance(found, type):
        return found
    classes = [name for name, value in vars(module).items() if isinstance(value, type)]
    close = difflib.get_close_matches(target.class_name, classes, n=1) or classes[:1]
    hint = f"; did you mean --engine {target.where}:{close[0]}?" if close else ""
    raise Refused(f"{target.where} defines no class {target.class_name!r}{hint}")


def _line_in(outline: Outline, error: BaseException) -> str:
    """The last line of the file that was running when the error came."""
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if Path(frame.filename) == outline.path]
    return f", {outline.place(frames[-1].lineno or 1)}," if frames else ""


def _one_line(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}".replace("\n", " ")
