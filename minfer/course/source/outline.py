"""Outline: what a source file says about itself, read without running it."""

import ast
import hashlib
import re
from dataclasses import dataclass, field
from pathlib import Path

from minfer.course.source import notebook

PHASE = re.compile(r"minfer\.phase(\d+)\b")


@dataclass
class Outline:
    """The classes, imports and attribute names of one Python file or notebook.

    `tree` is None where its syntax is wrong; of a notebook it holds what is run.
    """

    path: Path
    text: str
    tree: ast.Module | None = None
    error: SyntaxError | None = None
    names: dict[str, str] = field(default_factory=dict)
    """Name in the file -> what it was imported as: {"Base": "minfer.phase2.Engine"}."""

    @classmethod
    def read(cls, path: Path) -> "Outline":
        """Parse the file; a syntax error is kept, not raised. Raises `NotANotebook`."""
        is_notebook = path.suffix == notebook.SUFFIX
        text = notebook.Notebook.read(path).code if is_notebook else path.read_text(encoding="utf-8", errors="replace")
        outline = cls(path, text)
        try:
            outline.tree = notebook.definitions(text, str(path)) if is_notebook else notebook.parsed(text, str(path))
        except SyntaxError as error:
            outline.error = error
            return outline
        for node in ast.walk(outline.tree):
            if isinstance(node, ast.ImportFrom):
                module = "." * node.level + (node.module or "")
                outline.names |= {a.asname or a.name: f"{module}.{a.name}" for a in node.names}
            elif isinstance(node, ast.Import):
                outline.names |= {a.asname or a.name.partition(".")[0]: a.name for a in node.names}
        return outline

    @property
    def sha(self) -> str:
        """A short hash of the text, to tell one version from another."""
        return hashlib.sha256(self.text.encode()).hexdigest()[:8]

    def place(self, line: int) -> str:
        """ "line 12", or "cell 3, line 2"."""
        return notebook.place(self.text, line) if self.path.suffix == notebook.SUFFIX else f"line {line}"

    def find_class(self, name: str) -> ast.ClassDef | None:
        """The top-level class of that name."""
        body = self.tree.body if self.tree else []
        return next((n for n in body if isinstance(n, ast.ClassDef) and n.name == name), None)

    def base_of(self, node: ast.ClassDef) -> str:
        """The class's bases in full: "minfer.phase2.Engine"."""
        return ", ".join(self._full_name(base) for base in node.bases) or "none"

    def _full_name(self, node: ast.expr) -> str:
        first, dot, rest = ast.unparse(node).partition(".")
        return self.names.get(first, first) + dot + rest

    def phases_imported(self) -> list[tuple[int, int]]:
        """(line, N) of each import or mention in code of `minfer.phaseN`, also those inside functions."""
        found = []
        for node in ast.walk(self.tree) if self.tree else ():
            for text in _module_names(node):
                found += [(node.lineno, int(number)) for number in PHASE.findall(text)]  # type: ignore[attr-defined]
        return sorted(set(found))

    def attributes_used(self) -> set[str]:
        """Every name that the code reads as an attribute (`self.name`), calls or looks up."""
        nodes = list(ast.walk(self.tree)) if self.tree else []
        attributes = {n.attr for n in nodes if isinstance(n, ast.Attribute)}
        return attributes | {n.id for n in nodes if isinstance(n, ast.Name)}


def _module_names(node: ast.AST) -> list[str]:
    if isinstance(node, ast.Import):
        return [alias.name for alias in node.names]
    if isinstance(node, ast.ImportFrom):
        return [f"{node.module or ''}.{alias.name}" for alias in node.names]
    if isinstance(node, ast.Attribute):
        return [ast.unparse(node)]
    if isinstance(node, ast.Call):  # importlib.import_module("minfer.phase3")
        return [a.value for a in node.args if isinstance(a, ast.Constant) and isinstance(a.value, str)]
    return []
