"""The course: what grades an engine. Importing this package imports neither torch nor pytest.

    from minfer.course import check
    check(Engine)            # in a notebook: grade the class of a cell, with the tests that its graders use

grader     plugin: --engine and --seed, the fixtures `engine_cls` and `lab`; loading: from FILE.py:Class, a notebook or
           a folder to a class, refusing what would grade the wrong code; many submissions, each in a child process
marks      points, statuses, messages of one screen; the report of them, its table and its files
lessons    exercises, starters, a student's work, exports; mistakes: a page for each code, beside the planted mistakes
           of tests/mutants, which `grader.suspects` compares with
lectures   diff, compare, hooks, flatten
source     source read without running it, which lessons and lectures are made of
lab        tiny odd-sized models in float64, scripted models, recorded runs, comparisons; oracle: what a model must
           answer, in numpy, sharing nothing with minfer.core
machines   simulated cards, clocks and ranks, for tests
"""

from typing import Any

__all__ = ["check"]


def __getattr__(name: str) -> Any:
    if name != "check":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from minfer.course.grader.checking import check

    return check
