"""Sections: statements of several modules in one file, each module under a line with its name and its own docstring."""

import ast
from collections.abc import Callable, Mapping

from minfer.course.source.module import Module, Statement
from minfer.course.source.rewrite import as_comment

RULE = 118
"""Columns of a line that opens a section."""


def file_text(docstring: str, imports: str, *parts: str) -> str:
    """A file of these, with the blank lines that the project's style has between them."""
    return f"{docstring}\n\n{imports}\n\n" + "\n\n\n".join(part.strip("\n") for part in parts) + "\n"


def sections_text(kept: Mapping[Module, list[Statement]], text_of: Callable[[Statement], str]) -> list[str]:
    """A section for each module."""
    return [f"{_title(one)}\n\n\n{statements_text(statements, text_of)}" for one, statements in kept.items()]


def _title(one: Module) -> str:
    title = f"# ==== {one.name.removeprefix('minfer.').replace('.', '/')}.py "
    return f"{title.ljust(RULE, '=')}\n{as_comment(ast.get_docstring(one.tree) or '')}"


def statements_text(statements: list[Statement], text_of: Callable[[Statement], str]) -> str:
    """Statements one after another, with the blank lines that the project's style has between them."""
    made = ""
    before: Statement | None = None
    for statement in statements:
        if before is not None:
            block = any(isinstance(one.node, ast.ClassDef | ast.FunctionDef) for one in (before, statement))
            close = statement.first == before.last + 1
            made += "\n\n\n" if block else "\n" if close else "\n\n"
        made += text_of(statement)
        before = statement
    return made
