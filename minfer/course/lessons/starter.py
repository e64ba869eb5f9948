"""Starter: what a student begins a phase with: the reference without the bodies of the tasks, in one file or two."""

import ast
import textwrap
from collections.abc import Iterable

from minfer.core.errors import MinferError
from minfer.course.lessons.exercise import Exercise, Task
from minfer.course.source.gather import Gathered
from minfer.course.source.imports import import_block
from minfer.course.source.library import Definition, find, module, phase_of
from minfer.course.source.lineage import ENGINE, previous
from minfer.course.source.module import Imported, Module, Statement
from minfer.course.source.names import mentions
from minfer.course.source.naming import Meaning, Naming
from minfer.course.source.rewrite import renamed
from minfer.course.source.sections import RULE, file_text, sections_text


class Starter:
    """The files of one exercise. Raises `MinferError` where a task names what its phase does not have."""

    def __init__(self, exercise: Exercise) -> None:
        self.exercise = exercise
        phase = exercise.phase
        self.gathered = Gathered(inside=lambda one: phase_of(one.name) == phase)
        engine = find(module(f"minfer.phase{phase}"), ENGINE)
        assert isinstance(engine, Definition)
        self.gathered.add(engine)
        self.tasks = {name: task for task in exercise.tasks for name in task.write}
        self._refuse_unknown()
        self.given = self._given() if exercise.given else set()

    def files(self) -> dict[str, str]:
        """File name -> its text."""
        made = {"exercise.py": self._text(given=False)}
        if self.exercise.given:
            made[f"{self.exercise.given_module}.py"] = self._text(given=True)
        return made

    # ---- what goes where -----------------------------------------------------------------------------------------

    def _statements(self) -> Iterable[Statement]:
        for one in self.gathered.modules():
            yield from self.gathered.ordered(one)

    def _refuse_unknown(self) -> None:
        known = {name for statement in self._statements() for name in _functions(statement)}
        unknown = sorted(self.tasks.keys() - known)
        if unknown:
            raise MinferError(f"phase {self.exercise.phase} has no function that a task could ask for: {unknown}")

    def _given(self) -> set[Statement]:
        """What no task is in, and what needs nothing that one is in."""
        needs = {statement: self._needs(statement) for statement in self._statements()}
        mine = {statement for statement in needs if not self.tasks.keys().isdisjoint(_functions(statement))}
        while more := {one for one, needed in needs.items() if one not in mine and not needed.isdisjoint(mine)}:
            mine |= more
        return set(needs) - mine

    def _needs(self, statement: Statement) -> set[Statement]:
        found = (find(statement.module, mention.name) for mention in mentions(statement.node))
        inside = (one for one in found if isinstance(one, Definition) and self.gathered.inside(one.module))
        return {one.statement for one in inside}

    # ---- text ----------------------------------------------------------------------------------------------------

    def _text(self, given: bool) -> str:
        kept: dict[Module, list[Statement]] = {}
        imports: set[Imported] = set()
        for statement in self._statements():
            if (statement in self.given) == given:
                kept.setdefault(statement.module, []).append(statement)
                meant = {self._meaning(statement.module, mention.name) for mention in mentions(statement.node)}
                imports |= {one for one in meant if isinstance(one, Imported)}
        own = [Definition(one, name) for one, taken in kept.items() for s in taken for name in s.names]
        imports = {one for one in imports if not (given and one.module == self.exercise.given_module)}
        naming = Naming(self._meaning, imports, own, {})
        about = self._about_given() if given else self._about()
        sections = sections_text(kept, lambda statement: self._statement_text(statement, naming))
        return file_text(about, import_block(naming.imports), *sections)

    def _meaning(self, user: Module, name: str) -> Meaning | None:
        """What a name means: what the phase defines is in the file or given; all else is imported, as `user` does."""
        found = find(user, name)
        if not isinstance(found, Definition):
            return found and user.imports[name]
        if not self.gathered.inside(found.module):
            return user.imports[name]
        return Imported(self.exercise.given_module, name, name) if found.statement in self.given else found

    def _statement_text(self, statement: Statement, naming: Naming) -> str:
        lines = renamed(statement, naming.changed_in(statement.module)).splitlines()
        text, line = [], 0
        for name, node in sorted(_functions(statement).items(), key=lambda item: item[1].lineno):
            if name in self.tasks:
                first, last, column = _body(node)
                todo = f'raise NotImplementedError("P{self.exercise.phase} task {self.tasks[name].number}: {name}")'
                text += [*lines[line : first - statement.first], " " * column + todo]
                line = last - statement.first + 1
        return "\n".join([*text, *lines[line:]])

    def _about(self) -> str:
        exercise, phase = self.exercise, self.exercise.phase
        base = previous(phase)
        lines = [
            f"Phase {phase}, {exercise.title}: the starter. Each task is a `raise NotImplementedError` to replace.",
            "",
            *(line for task in exercise.tasks for line in _about_task(task)),
            "",
            f"Copy it (`minfer start {phase}`), write, then look what is right: `minfer check {phase}`, or",
            f"`pytest tests/phase{phase} --engine work/phase{phase}.py`. Hints: `minfer hint {phase} 1`.",
        ]
        if base:
            lines += [f"It builds on the reference of phase {base}; to build on your own, import that instead."]
        return '"""' + "\n".join(lines) + '\n"""'

    def _about_given(self) -> str:
        return (
            f'"""Phase {self.exercise.phase}, {self.exercise.title}: what its starter needs, and no task is about."""'
        )


def _about_task(task: Task) -> list[str]:
    text = f"Task {task.number}, {task.points:g} points. {task.title}: {', '.join(task.write)}"
    return textwrap.wrap(text, RULE, subsequent_indent="    ")


def _functions(statement: Statement) -> dict[str, ast.FunctionDef]:
    """The functions of a statement by the names that tasks call them: `function`, or `Class.method`."""
    node = statement.node
    if isinstance(node, ast.FunctionDef):
        return {node.name: node}
    if isinstance(node, ast.ClassDef):
        return {f"{node.name}.{one.name}": one for one in node.body if isinstance(one, ast.FunctionDef)}
    return {}


def _body(node: ast.FunctionDef) -> tuple[int, int, int]:
    """The lines after a function's docstring, first and last, and the column where they begin."""
    documented = ast.get_docstring(node) is not None
    first = (node.body[0].end_lineno or 0) + 1 if documented else node.body[0].lineno
    return first, node.end_lineno or first, node.body[0].col_offset
