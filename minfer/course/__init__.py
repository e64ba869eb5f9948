"""The course: what grades an engine. Importing this package imports neither torch nor pytest.

    from minfer.course import check
    check(Engine)            # in a notebook: grade the class of a cell, with the tests that its graders use

plugin     --engine and --seed, the fixtures `engine_cls` and `lab`; marking: points, statuses, messages of one screen
loading    from FILE.py:Class, a notebook or a folder to a class, refusing what would grade the wrong code
lab        tiny odd-sized models in float64, scripted models, recorded runs, comparisons
oracle     what a model must answer, in numpy, sharing nothing with minfer.core
grader     many submissions, each in a child process
mistakes   a page for each code, beside the planted mistakes of tests/mutants, which `suspects` compares with
"""

from typing import Any

__all__ = ["check"]


def __getattr__(name: str) -> Any:
    if name != "check":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from minfer.course.checking import check

    return check
