"""Notebook: of a .ipynb file the code that defines: imports, functions, classes and constants; nothing else is run.

The lines keep their cells: a statement that is left out leaves empty lines, so line numbers are those of all code
cells, one below the other, each under a line `# cell N`.
"""

import ast
import json
from dataclasses import dataclass
from pathlib import Path

SUFFIX = ".ipynb"
MARK = "# cell "
DEFINES = (ast.Import, ast.ImportFrom, ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)


class NotANotebook(ValueError):
    """The file is not a notebook's JSON."""


@dataclass(frozen=True)
class Notebook:
    """The code cells of a notebook, by their number among all its cells, counted from 1."""

    cells: dict[int, str]

    @classmethod
    def read(cls, path: Path) -> "Notebook":
        """Read a notebook of format 4. Raises `NotANotebook`."""
        try:
            cells = json.loads(path.read_text(encoding="utf-8"))["cells"]
            code = {n: "".join(cell["source"]) for n, cell in enumerate(cells, 1) if cell["cell_type"] == "code"}
        except (ValueError, KeyError, TypeError, RecursionError) as error:
            raise NotANotebook(f"is not a notebook of format 4 ({type(error).__name__}: {error})") from error
        return cls(code)

    @property
    def code(self) -> str:
        """All cells as one file, without what only IPython understands."""
        return "\n".join(f"{MARK}{number}\n{_without_magics(text)}\n" for number, text in self.cells.items())


def _without_magics(text: str) -> str:
    """Lines such as `%matplotlib inline` and `!pip install` become empty; so does a cell that begins with %%."""
    lines = text.splitlines()
    if lines and lines[0].startswith("%%"):
        return "\n" * (len(lines) - 1)
    return "\n".join("" if line.lstrip().startswith(("%", "!")) else line for line in lines)


def parsed(code: str, name: str) -> ast.Module:
    """As `ast.parse`, but what is nested too deeply for it is a `SyntaxError` too."""
    try:
        return ast.parse(code, name)
    except (RecursionError, MemoryError) as error:
        raise SyntaxError("it is nested too deeply for Python") from error


def definitions(code: str, name: str) -> ast.Module:
    """The parsed code without the statements that do something. Raises `SyntaxError`."""
    tree = parsed(code, name)
    tree.body = [node for node in tree.body if _defines(node)]
    return tree


def _defines(node: ast.stmt) -> bool:
    if isinstance(node, ast.If | ast.Try):  # try: import x, except ImportError: x = None
        inner = [*node.body, *node.orelse, *(n for handler in getattr(node, "handlers", ()) for n in handler.body)]
        return all(_defines(part) or isinstance(part, ast.Pass) for part in inner)
    return isinstance(node, DEFINES) or _is_constant(node)


def _is_constant(node: ast.stmt) -> bool:
    """NAME = anything, or any name = something that calls nothing."""
    if not isinstance(node, ast.Assign | ast.AnnAssign) or node.value is None:
        return False
    targets = node.targets if isinstance(node, ast.Assign) else [node.target]
    if not all(isinstance(target, ast.Name) for target in targets):
        return False
    upper = all(isinstance(target, ast.Name) and target.id.isupper() for target in targets)
    return upper or not any(isinstance(part, ast.Call | ast.Await) for part in ast.walk(node.value))


def place(code: str, line: int) -> str:
    """ "cell 3, line 2" of a line of the code."""
    lines = code.splitlines()[:line]
    start = max((i for i, text in enumerate(lines) if text.startswith(MARK)), default=None)
    return f"line {line}" if start is None else f"cell {lines[start][len(MARK) :]}, line {line - start - 1}"
