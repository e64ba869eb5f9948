"""A course of one small phase: graded in a moment, since its tests ask for numbers, not for models."""

from pathlib import Path

PYPROJECT = """
[tool.pytest.ini_options]
addopts = ["-p", "minfer.course.grader.plugin", "--import-mode=importlib"]
markers = ["points(value=None, needs=None): …", "gpu: …"]
"""
TASK = """
[[task]]
title = "Task {number}"
goal = "Say the numbers."
write = ["Engine.say{number}"]
checks = {{ {checks} }}
hints = ["Where?", "What?", "How?"]
"""
TEST = """
{mark}
def test_{name}_says_{says}(engine_cls, lab):
    lab.equal(engine_cls().{says}(), [1, 2, {answer}], "{code}", "asked for {says}", "count on")
"""


def toy_course(root: Path, names: list[str], needs: dict[str, str] | None = None, marks: dict[str, str] | None = None):
    """A course whose test P1-0i asks `Engine().NAME()` for [1, 2, i]; the first half of the codes is task 1's."""
    codes = {name: f"P1-{i:02}" for i, name in enumerate(names, 1)}
    tests = ["import pytest"]
    for i, (name, code) in enumerate(codes.items(), 1):
        mark = (marks or {}).get(name, "")
        if name in (needs or {}):
            mark += f'@pytest.mark.points(needs="{codes[needs[name]]}")'
        tests.append(TEST.format(name=code.replace("-", "_"), says=name, code=code, answer=i, mark=mark))
    half = len(names) // 2
    listed = list(codes.values())
    tasks = [
        TASK.format(number=number, checks=", ".join(f"{code} = {50 / len(part)}" for code in part))
        for number, part in enumerate((listed[:half], listed[half:]), 1)
    ]
    (root / "tests" / "phase1").mkdir(parents=True)
    (root / "phases" / "phase1").mkdir(parents=True)
    (root / "pyproject.toml").write_text(PYPROJECT)
    file = f"test_toy_{abs(hash(root))}.py"  # pytest imports a file of the same name in another root only once
    (root / "tests" / "phase1" / file).write_text("\n".join(tests))
    (root / "phases" / "phase1" / "exercise.toml").write_text('title = "Toy"\nminutes = 5\n' + "".join(tasks))
    (root / "phases" / "phase1" / "exercise.py").write_text("class Engine:\n    pass\n")
    return root


def engine(path: Path, head: str = "", **bodies: str) -> Path:
    """A file with an `Engine` whose methods have these bodies."""
    methods = [f"    def {name}(self):\n        {body}\n" for name, body in bodies.items()]
    path.write_text("\n".join([head, "class Engine:", *methods]))
    return path
