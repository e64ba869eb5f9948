"""A flattened phase needs no other phase, hides none, and answers as the phase does."""

import ast
import re

import pytest

from minfer.core.errors import MinferError
from minfer.course.grader.grading import reference
from minfer.course.lectures.flatten import flatten
from minfer.course.source.library import phases
from tests.meta.in_process import Outcomes, run_engine

QUICK = "test_P0_20 or test_P0_29"  # every family at every step; log-probabilities, which run beside the cache


class Flat(dict):
    """The text of each phase, made when first asked for."""

    def __missing__(self, phase):
        self[phase] = flatten(phase)
        return self[phase]

    def items(self):
        """Of all phases."""
        return [(phase, self[phase]) for phase in phases()]

    def values(self):
        """Of all phases."""
        return [text for _, text in self.items()]


@pytest.fixture(scope="module")
def flat():
    return Flat()


def test_no_phase_is_needed_and_none_is_inherited_from(flat):
    for text in flat.values():
        assert not re.search(r"(import|from) +minfer\.phase", text)
        tree = ast.parse(text)
        (engine,) = [one for one in tree.body if isinstance(one, ast.ClassDef) and one.name == "Engine"]
        assert not engine.bases
        assert not any(isinstance(node, ast.Name) and node.id == "super" for node in ast.walk(engine))


def test_every_public_method_of_the_phase_is_there_or_dead(flat):
    for phase, text in flat.items():
        engine_cls = reference(phase)
        own = [(name, one) for cls in engine_cls.__mro__[:-1] for name, one in vars(cls).items()]
        names = {name for name, one in own if callable(one) and not isinstance(one, type) and not name.startswith("_")}
        (engine,) = [one for one in ast.parse(text).body if isinstance(one, ast.ClassDef) and one.name == "Engine"]
        there = {one.name for one in engine.body if isinstance(one, ast.FunctionDef)}
        rest = ast.unparse(engine)
        missing = [name for name in names - there if f".{name}(" in rest]
        assert not missing, f"phase {phase} calls {missing}, which it does not define"
        assert {"load", "generate", "stream", "run", "prepare", "forward", "commit"} <= there


def test_methods_that_nothing_calls_any_more_are_left_out(flat):
    assert "def admit" in flat[3]
    assert "def admit" not in flat[5]
    assert "class KVCache" in flat[3]
    assert "class KVCache" not in flat[4]


def test_what_two_modules_call_alike_has_two_names(flat):
    for text in flat.values():
        names = [one.name for one in ast.parse(text).body if isinstance(one, ast.ClassDef | ast.FunctionDef)]
        assert len(names) == len(set(names))


def test_a_method_says_which_phases_wrote_it(flat):
    assert re.search(r"# phases 1, 3\n    def admit", flat[3])
    assert re.search(r"# phase 4\n    def prepare", flat[4])


@pytest.mark.parametrize("phase", phases())
def test_it_answers_as_the_phase_does(phase, flat, tmp_path):
    file = tmp_path / f"flat{phase}.py"
    file.write_text(flat[phase])
    outcomes = Outcomes()
    run_engine(phase, f"{file}:Engine", outcomes, "-k", QUICK)
    assert len(outcomes.shown) == 2
    assert not any(outcomes.shown.values()), outcomes.shown


def test_a_phase_that_is_not_there_is_refused():
    with pytest.raises(MinferError, match="there is no phase 99: choose one of 1, 2"):
        flatten(99)
