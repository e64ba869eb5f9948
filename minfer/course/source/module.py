"""Module: a source file as statements, each with the comments above it, and its imports."""

import ast
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path


@dataclass(frozen=True)
class Statement:
    """A statement of a module or a class, with what belongs to it: comments right above, a string right below."""

    module: "Module"
    node: ast.stmt
    first: int  # line, from 1
    last: int

    @property
    def names(self) -> list[str]:
        """What it defines."""
        if isinstance(self.node, ast.ClassDef | ast.FunctionDef):
            return [self.node.name]
        if isinstance(self.node, ast.Assign | ast.AnnAssign):
            targets = self.node.targets if isinstance(self.node, ast.Assign) else [self.node.target]
            return [node.id for target in targets for node in ast.walk(target) if isinstance(node, ast.Name)]
        return []

    @property
    def text(self) -> str:
        """Its lines, as they stand."""
        return "\n".join(self.module.lines[self.first - 1 : self.last])

    @property
    def start(self) -> int:
        """The line of its code: of the first decorator, if there are any."""
        return first_line(self.node)

    @property
    def code_lines(self) -> int:
        """Lines with code: without comments, docstrings and blank lines."""
        documented = {line for node in ast.walk(self.node) for line in docstring_lines(node)}
        lines = range(self.start, (self.node.end_lineno or self.start) + 1)
        texts = {line: self.module.lines[line - 1].strip() for line in lines if line not in documented}
        return sum(bool(text) and not text.startswith("#") for text in texts.values())

    @property
    def doc(self) -> str:
        """The first line of its docstring; empty without one."""
        documented = isinstance(self.node, ast.ClassDef | ast.FunctionDef)
        return (ast.get_docstring(self.node) or "").partition("\n")[0] if documented else ""  # type: ignore[arg-type]


@dataclass(frozen=True)
class Imported:
    """What a name was imported as: `from module import name`, or `import module` where `name` is None."""

    module: str
    name: str | None
    alias: str
    for_types: bool = field(default=False, compare=False)  # only where types are checked

    @property
    def what(self) -> tuple[str, str]:
        """The thing itself, whatever it is called here."""
        return self.module, self.name or ""


@dataclass(frozen=True, eq=False)
class Module:
    """A module's text. `name` is its full name: minfer.phase3.engine."""

    name: str
    text: str
    path: Path
    imports: dict[str, Imported] = field(default_factory=dict)

    @classmethod
    def read(cls, name: str, path: Path) -> "Module":
        """Parse a file. Raises `OSError` or `SyntaxError`."""
        module = cls(name, path.read_text(encoding="utf-8"), path)
        for node in module.tree.body:
            for_types = isinstance(node, ast.If)
            for found in node.body if isinstance(node, ast.If) else [node]:
                module.imports.update(_imported(found, for_types))
        return module

    @cached_property
    def tree(self) -> ast.Module:
        """The parsed text."""
        return ast.parse(self.text, str(self.path))

    @cached_property
    def lines(self) -> list[str]:
        """The text's lines."""
        return self.text.splitlines()

    @cached_property
    def statements(self) -> list[Statement]:
        """All but its docstring and imports."""
        found = statements_of(self, self.tree.body, 0)
        return [one for one in found if not isinstance(one.node, ast.Import | ast.ImportFrom)]

    @cached_property
    def defined(self) -> dict[str, Statement]:
        """Name -> the statement that defines it."""
        return {name: statement for statement in self.statements for name in statement.names}

    @property
    def doc(self) -> str:
        """The first line of its docstring."""
        return (ast.get_docstring(self.tree) or "").partition("\n")[0]

    @property
    def phase(self) -> str:
        """The package that it is in: minfer.phase3."""
        return ".".join(self.name.split(".")[:2])


def statements_of(module: Module, body: list[ast.stmt], line: int) -> list[Statement]:
    """The statements of a body whose owner's head ends in `line`; strings that stand alone go with what they follow."""
    found: list[Statement] = []
    for node in body:
        end = node.end_lineno or node.lineno
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
            if found and isinstance(found[-1].node, ast.Assign | ast.AnnAssign):
                found[-1] = Statement(module, found[-1].node, found[-1].first, end)
            line = end
            continue
        first = first_line(node)
        while first - 1 > line and module.lines[first - 2].strip().startswith("#"):
            first -= 1
        found.append(Statement(module, node, first, end))
        line = end
    return found


def first_line(node: ast.stmt) -> int:
    """Where a statement begins, decorators included."""
    return min([node.lineno, *(one.lineno for one in getattr(node, "decorator_list", ()))])


def docstring_lines(node: ast.AST) -> range:
    """The lines of a node's docstring, or of a string that stands alone."""
    if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
        return range(node.lineno, (node.end_lineno or node.lineno) + 1)
    return range(0)


def _imported(node: ast.stmt, for_types: bool) -> dict[str, Imported]:
    if isinstance(node, ast.ImportFrom):
        made = [Imported(node.module or "", a.name, a.asname or a.name, for_types) for a in node.names]
    elif isinstance(node, ast.Import):
        made = [Imported(a.name, None, a.asname or a.name, for_types) for a in node.names]
    else:
        return {}
    return {one.alias.partition(".")[0] if one.name is None else one.alias: one for one in made}
