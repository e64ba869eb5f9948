"""Which names of its module a piece of code means: those that no function or class around them binds itself."""

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache

Function = ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda
WORD = re.compile(r"[A-Za-z_]\w*")


@dataclass(frozen=True)
class Mention:
    """A name of the module, and where it stands: line, and columns in bytes of UTF-8; `lazy`: within a string."""

    name: str
    line: int
    start: int
    end: int
    lazy: bool = False


@cache
def mentions(node: ast.AST) -> tuple[Mention, ...]:
    """All names in `node` that are the module's own, or built in; strings that are annotations are read too.

    What was found is kept: no tree is changed, and one that many phases share is asked many times.
    """
    return tuple(_walk(node, frozenset()))


@cache
def attributes(node: ast.AST, of_self: bool = True) -> frozenset[str]:
    """Every name that follows a dot; those of `self` too, unless that is another object. Kept, as `mentions` are."""
    found = [one for one in ast.walk(node) if isinstance(one, ast.Attribute)]
    kept = [one for one in found if of_self or not (isinstance(one.value, ast.Name) and one.value.id == "self")]
    return frozenset(one.attr for one in kept)


def _walk(node: ast.AST, bound: frozenset[str]) -> Iterator[Mention]:
    if isinstance(node, ast.Name):
        if node.id not in bound:
            yield Mention(node.id, node.lineno, node.col_offset, node.end_col_offset or 0)
        return
    if isinstance(node, Function):
        yield from _walk_function(node, bound)
        return
    if isinstance(node, ast.ClassDef):
        for part in [*node.bases, *node.keywords, *node.decorator_list]:
            yield from _walk(part, bound)
        own = _bound_in(node.body)
        for statement in node.body:  # a class's own names are seen by its statements, not within its methods
            yield from _walk(statement, bound if isinstance(statement, Function) else bound | own)
        return
    if isinstance(node, ast.AnnAssign):
        yield from _annotation(node.annotation, bound)
        yield from _walk(node.target, bound)
        if node.value is not None:
            yield from _walk(node.value, bound)
        return
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "cast" and node.args:
        yield from _annotation(node.args[0], bound)
    for child in ast.iter_child_nodes(node):
        yield from _walk(child, bound)


def _walk_function(node: Function, bound: frozenset[str]) -> Iterator[Mention]:
    arguments = [*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs]
    arguments += [one for one in (node.args.vararg, node.args.kwarg) if one is not None]
    for argument in arguments:
        if argument.annotation is not None:
            yield from _annotation(argument.annotation, bound)
    for default in [*node.args.defaults, *(one for one in node.args.kw_defaults if one is not None)]:
        yield from _walk(default, bound)
    body: list[ast.AST] = [node.body] if isinstance(node, ast.Lambda) else list(node.body)
    if not isinstance(node, ast.Lambda):
        for decorator in node.decorator_list:
            yield from _walk(decorator, bound)
        if node.returns is not None:
            yield from _annotation(node.returns, bound)
    inner = bound | {argument.arg for argument in arguments} | _bound_in(body)
    for part in body:
        yield from _walk(part, inner)


def _annotation(node: ast.expr, bound: frozenset[str]) -> Iterator[Mention]:
    for part in ast.walk(node):
        if isinstance(part, ast.Constant) and isinstance(part.value, str) and part.lineno == part.end_lineno:
            for word in WORD.finditer(part.value):
                start = part.col_offset + 1 + word.start()
                yield Mention(word[0], part.lineno, start, start + len(word[0]), lazy=True)
    yield from _walk(node, bound)


def _bound_in(body: list[ast.stmt] | list[ast.AST]) -> frozenset[str]:
    """Names that these statements bind; what functions and classes in them bind is their own."""
    found: set[str] = set()
    todo: list[ast.AST] = list(body)
    while todo:
        node = todo.pop()
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            found.add(node.name)
        elif isinstance(node, ast.Name) and not isinstance(node.ctx, ast.Load):
            found.add(node.id)
        elif isinstance(node, ast.alias):
            found.add((node.asname or node.name).partition(".")[0])
        elif isinstance(node, ast.ExceptHandler) and node.name:
            found.add(node.name)
        if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef | ast.Lambda):
            todo += ast.iter_child_nodes(node)
    return frozenset(found)
