"""Every planted bug is there, and is found by the test that bears its code; right engines of another make pass all.

`pytest tests/meta --seed N` asks this of the tests that another seed draws.
"""

from pathlib import Path

import numpy as np
import pytest

from minfer.core.errors import MinferError
from minfer.course.grader.grading import reference
from minfer.course.lab.lab import Lab
from tests.meta.in_process import grade, names_of
from tests.mutants.catalogue import MODULES, PHASES, up_to
from tests.mutants.correct import VARIANTS as FIRST_VARIANTS
from tests.mutants.correct6 import VARIANTS as QUANTIZED_VARIANTS
from tests.mutants.correct11 import VARIANTS as PROFILING_VARIANTS
from tests.mutants.correct45 import VARIANTS as BATCHED_VARIANTS
from tests.mutants.probes import outcome

MUTANTS = up_to(PHASES[-1])
RAISED = "\n  raised    "  # in a message: an exception ended the test, not a comparison


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_the_mutant_differs_and_its_test_fails(mutant, lab):
    planted = outcome(mutant.probe, mutant.engine_cls, lab_of_a_probe(lab))
    assert not same(planted, right(mutant, lab)), "the plant did not land: the probe sees what it sees in the reference"
    shown = grade(mutant.engine_cls, mutant.phase, mutant.code, lab.seed)
    assert all(shown.values()), f"survived: {[name for name, message in shown.items() if not message]}"
    said = [message.startswith(mutant.code) and RAISED not in message for message in shown.values()]
    assert all(said) or mutant.crashes, f"found by accident: {list(shown.values())}"


@pytest.mark.parametrize(
    "variant",
    [*FIRST_VARIANTS, *BATCHED_VARIANTS, *QUANTIZED_VARIANTS, *PROFILING_VARIANTS],
    ids=lambda variant: variant.name,
)
def test_a_right_engine_of_another_make_passes(variant, lab):
    shown = grade(variant.engine_cls, variant.phase, seed=lab.seed)
    failed = {name: message for name, message in shown.items() if message}
    assert not failed, next(iter(failed.values()))


def test_every_module_of_planted_bugs_is_in_the_catalogue_under_its_phase():
    folder = Path(__file__).parents[1] / "mutants"
    modules = {path.stem for path in folder.glob("*.py") if "\nMUTANTS = " in path.read_text()}
    listed = [(name, phase) for phase in PHASES for name in MODULES[phase]]
    assert sorted(name for name, _ in listed) == sorted(modules)
    assert {mutant.phase for mutant in MUTANTS} == set(PHASES)
    assert all(f"MUTANTS = Mutants(phase={phase})" in (folder / f"{name}.py").read_text() for name, phase in listed)


def test_every_graded_test_has_a_mutant():
    codes = {mutant.code for mutant in MUTANTS}
    for phase in PHASES:
        without = [name for name in names_of(phase) if "-".join(name.split("_")[1:3]) not in codes]
        assert not without, f"no mutant can fail {without}"


RIGHT = {}
"""What a probe saw in the reference, by probe, phase and seed."""


def right(mutant, lab):
    """What the mutant's probe sees in the reference; mutants that share a probe share that."""
    asked = mutant.probe, mutant.phase, lab.seed
    if asked not in RIGHT:
        RIGHT[asked] = outcome(mutant.probe, reference(mutant.phase), lab_of_a_probe(lab), errors=MinferError)
    return RIGHT[asked]


def lab_of_a_probe(lab):
    """One that draws the same whoever is probed: two outcomes differ by the engines alone."""
    return Lab(lab.seed, lab.new_folder, "probe")


def same(one, other):
    """Whether two outcomes are the same; tensors and arrays by value."""
    if hasattr(one, "detach"):
        one, other = one.detach().numpy(), other.detach().numpy() if hasattr(other, "detach") else other
    if isinstance(one, np.ndarray):
        return isinstance(other, np.ndarray) and np.array_equal(one, other)
    return type(one) is type(other) and bool(one == other)
