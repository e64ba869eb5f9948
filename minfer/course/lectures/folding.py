"""Folding: a method and those that it calls by `super()`, as one method without inheritance.

The inherited body is written in place of the call where that is the same thing; where it is not, because the body
returns in its middle or their variables collide, the inherited method stays beside, under the name `forward_of_phase7`.
"""

import ast
from collections.abc import Callable
from dataclasses import dataclass, field

from minfer.course.source.lineage import Lineage, Member, is_super_call
from minfer.course.source.rewrite import body_of, body_text, head, indented, parsed

CORE = "_super_of_core()"
"""Stands for a `super()` that means a class outside of the lineage, until all others are folded."""

LONG = 3
"""Lines of an inherited body from which on it is not written twice."""


@dataclass
class Folding:
    """Folds the methods of one lineage. `text_of` gives a member's text, dedented, in the names of the result."""

    lineage: Lineage
    text_of: Callable[[Member], str]
    kept: dict[str, str] = field(default_factory=dict)
    """Inherited methods that stay, by their new names; found while folding."""
    used: list[Member] = field(default_factory=list)
    """Every member whose text is in the result."""

    def fold(self, name: str) -> str:
        """The method `name` of the youngest class."""
        return self._fold(self.lineage.versions(name)).replace(CORE, "super()")

    def _fold(self, versions: list[Member]) -> str:
        member = versions[-1]
        self.used.append(member)
        text = self.text_of(member)
        for called in dict.fromkeys(member.calls_inherited):
            below = self.lineage.below(member.owner).versions(called)
            if below:
                text = self._without_super(text, called, below, member)
        return text

    def _without_super(self, text: str, called: str, below: list[Member], member: Member) -> str:
        """`text` with its calls of `super().called` replaced."""
        lower = self._fold(below).replace("super()", CORE)
        calls = sum(one.calls_inherited.count(called) for one in member.owner.members.values())
        lines = len(body_text(lower).splitlines())
        if calls == 1 or lines <= LONG:
            folded: str | None = text
            while folded is not None and (call := _super_call(folded, called)) is not None:
                folded = _spliced(folded, lower, call)
            if folded is not None:
                return _with_docs(folded, lower) if called == member.name else folded
        new = f"{called}_of_phase{below[-1].owner.phase}"
        self.kept[new] = lower.replace(CORE, "super()").replace(f"def {called}(", f"def {new}(", 1)
        owner = "cls" if _is_classmethod(parsed(lower)) else "self"
        return text.replace(f"super().{called}(", f"{owner}.{new}(")


def _super_call(text: str, called: str) -> ast.Call | None:
    for node in ast.walk(parsed(text)):
        if is_super_call(node) and node.func.attr == called:  # type: ignore[attr-defined]
            assert isinstance(node, ast.Call)
            return node
    return None


def _spliced(text: str, lower: str, call: ast.Call) -> str | None:
    """`text` with the body of `lower` in place of a call of it; None where that would not be the same."""
    function, inherited = parsed(text), parsed(lower)
    call = _same_call(function, call)
    statement = _statement_of(function, call)
    given = _bindings(call, inherited)
    if given is None or _wrapping(function) != _wrapping(inherited) or _is_generator(inherited):
        return None
    single = _single_expression(inherited)
    if single is not None and not given and not (isinstance(statement, ast.Assign) and statement.value is call):
        return _with_expression(text, call, ast.get_source_segment(lower, single) or "", single)
    if getattr(statement, "value", None) is not call:
        return None
    made = _in_place(statement, inherited, lower, given)
    if made is None or not (isinstance(statement, ast.Return) or _independent(function, inherited, statement, given)):
        return None
    lines = text.splitlines()
    lines[statement.lineno - 1 : statement.end_lineno] = indented(made, statement.col_offset).splitlines()
    return "\n".join(lines)


def _in_place(statement: ast.stmt, inherited: ast.FunctionDef, lower: str, given: dict[str, str]) -> str | None:
    """The lines that do what the statement did, if the inherited body's end allows it."""
    body = body_of(inherited)
    returns = [node for node in ast.walk(inherited) if isinstance(node, ast.Return)]
    before = "".join(f"{name} = {value}\n" for name, value in given.items())
    text = body_text(lower)
    if isinstance(statement, ast.Return):
        return before + text if body and isinstance(body[-1], ast.Return | ast.Raise) else None
    if isinstance(statement, ast.Expr):
        return (before + text) or "pass" if not returns else None
    if not isinstance(statement, ast.Assign) or returns != [body[-1]] or returns[0].value is None:
        return None
    last = returns[0]
    lines = text.splitlines()
    value = ast.get_source_segment(lower, last.value) or ""  # type: ignore[arg-type]
    kept = lines[: len(lines) - (last.end_lineno or last.lineno) + last.lineno - 1]
    target = ast.unparse(statement.targets[0])
    return before + "\n".join([*kept, *([f"{target} = {value}"] if target != value else [])])


def _independent(
    function: ast.FunctionDef, inherited: ast.FunctionDef, statement: ast.stmt, given: dict[str, str]
) -> bool:
    """Whether what the inherited body binds is nothing that the rest of the function uses."""
    bound = {node.id for node in ast.walk(inherited) if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)}
    bound |= given.keys()
    used = {node.id for node in ast.walk(function) if isinstance(node, ast.Name) and node.lineno > statement.lineno}
    targets = statement.targets if isinstance(statement, ast.Assign) else []
    return not bound & (used - {ast.unparse(target) for target in targets})


def _bindings(call: ast.Call, inherited: ast.FunctionDef) -> dict[str, str] | None:
    """Parameter -> argument, where they differ; None where an argument is left out or spread."""
    arguments = inherited.args
    names = [argument.arg for argument in [*arguments.posonlyargs, *arguments.args][1:]]
    given = {name: ast.unparse(value) for name, value in zip(names, call.args, strict=False)}
    for keyword in call.keywords:
        name = keyword.arg or (arguments.kwarg.arg if arguments.kwarg else "")
        if keyword.arg is None and ast.unparse(keyword.value) != name:
            return None
        given[name] = ast.unparse(keyword.value)
    expected = {*names, *([arguments.kwarg.arg] if arguments.kwarg else [])}
    if set(given) != expected or arguments.vararg or any(isinstance(one, ast.Starred) for one in call.args):
        return None
    return {name: value for name, value in given.items() if name != value}


def _single_expression(inherited: ast.FunctionDef) -> ast.expr | None:
    body = body_of(inherited)
    return body[0].value if len(body) == 1 and isinstance(body[0], ast.Return) else None


def _with_expression(text: str, call: ast.Call, source: str, expression: ast.expr) -> str | None:
    if call.lineno != call.end_lineno or "\n" in source:
        return None
    if isinstance(expression, ast.BinOp | ast.BoolOp | ast.Compare | ast.IfExp | ast.Lambda):
        source = f"({source})"
    lines = text.splitlines()
    line = lines[call.lineno - 1].encode()
    lines[call.lineno - 1] = (line[: call.col_offset] + source.encode() + line[call.end_col_offset :]).decode()
    return "\n".join(lines)


def _with_docs(text: str, lower: str) -> str:
    """A docstring that says "As before" begins with what was before."""
    upper_doc, lower_doc = (ast.get_docstring(parsed(one)) or "" for one in (text, lower))
    if not upper_doc.startswith("As before") or not lower_doc:
        return text
    signature = head(text).splitlines()[: parsed(text).body[0].lineno - 1]
    doc = indented(f'"""{lower_doc}\n\n{upper_doc}\n"""')
    return "\n".join([*signature, doc, indented(body_text(text))])


def _same_call(function: ast.FunctionDef, call: ast.Call) -> ast.Call:
    place = call.lineno, call.col_offset, call.end_col_offset
    return next(
        node
        for node in ast.walk(function)
        if isinstance(node, ast.Call) and (node.lineno, node.col_offset, node.end_col_offset) == place
    )


def _statement_of(function: ast.FunctionDef, call: ast.Call) -> ast.stmt:
    holding = [
        node for node in ast.walk(function) if isinstance(node, ast.stmt) and any(one is call for one in ast.walk(node))
    ]
    return holding[-1]  # `ast.walk` comes to inner ones later


def _wrapping(function: ast.FunctionDef) -> list[str]:
    return [ast.unparse(one) for one in function.decorator_list]


def _is_classmethod(function: ast.FunctionDef) -> bool:
    return "classmethod" in _wrapping(function)


def _is_generator(function: ast.FunctionDef) -> bool:
    return any(isinstance(node, ast.Yield | ast.YieldFrom) for node in ast.walk(function))
