"""An exercise that nobody has begun scores nothing: if it did, something else would have been graded."""

import pytest

from minfer.course.grader.grading import reference
from tests.meta.in_process import grade, names_of
from tests.mutants.catalogue import PHASES


def empty(phase):
    """The phase's engine with every public method still to be written."""

    def todo(*_, **__):
        raise NotImplementedError("task 1: write this")

    base = reference(phase)
    methods = [name for name in dir(base) if not name.startswith("_") and callable(getattr(base, name))]
    return type("Engine", (base,), {name: todo for name in methods if not isinstance(getattr(base, name), type)})


@pytest.mark.parametrize("phase", PHASES)
def test_an_empty_exercise_passes_nothing(phase):
    shown = grade(empty(phase), phase)
    assert sorted(shown) == sorted(names_of(phase))
    assert [name for name, message in shown.items() if not message] == []
    begun = ("todo: task 1: write this", "blocked: needs ")
    assert [message for message in shown.values() if not message.startswith(begun)] == []
