"""Rewriting source by its text, so that comments and layout stay: other names, another indentation, docstrings."""

import ast
import textwrap
from collections.abc import Mapping

from minfer.course.source.module import Statement
from minfer.course.source.names import mentions


def renamed(statement: Statement, names: Mapping[str, str]) -> str:
    """The statement's text, dedented, with the module's names changed as `names` says."""
    lines = [line.encode() for line in statement.text.splitlines()]
    found = {(one.line, one.start, one.end, one.name) for one in mentions(statement.node) if one.name in names}
    for line, start, end, name in sorted(found, reverse=True):
        old = lines[line - statement.first]
        lines[line - statement.first] = old[:start] + names[name].encode() + old[end:]
    text = b"\n".join(lines).decode()
    node = statement.node
    if isinstance(node, ast.ClassDef | ast.FunctionDef) and node.name in names and node.col_offset == 0:
        word = "class" if isinstance(node, ast.ClassDef) else "def"
        text = text.replace(f"{word} {node.name}", f"{word} {names[node.name]}", 1)
    return textwrap.dedent(text)


def parsed(text: str) -> ast.FunctionDef:
    """The one function that `text` defines."""
    node = next(one for one in ast.parse(text).body if isinstance(one, ast.FunctionDef))
    assert isinstance(node, ast.FunctionDef)
    return node


def body_of(node: ast.FunctionDef) -> list[ast.stmt]:
    """A function's statements after its docstring."""
    return node.body[1:] if ast.get_docstring(node) is not None else node.body


def head(text: str) -> str:
    """A function's text down to the end of its docstring, or of its signature if it has none."""
    node = parsed(text)
    first = node.body[0]
    end = first.end_lineno if ast.get_docstring(node) is not None else first.lineno - 1
    return "\n".join(text.splitlines()[:end])


def body_text(text: str) -> str:
    """What follows the head, dedented; comments are kept."""
    lines = text.splitlines()[len(head(text).splitlines()) :]
    return textwrap.dedent("\n".join(lines)).strip("\n")


def indented(text: str, columns: int = 4) -> str:
    """Every line that is not empty moved to the right."""
    return textwrap.indent(text, " " * columns)


def as_comment(text: str) -> str:
    """Text as lines of comment."""
    return "\n".join(f"# {line}".rstrip() for line in text.splitlines())
