"""Grade a class that is in memory, by a pytest of its own within this process."""

from pathlib import Path

import pytest

from minfer.course.grader.grading import Graded
from minfer.course.grader.plugin import DEFAULT_SEED

ROOT = Path(__file__).parents[2]


class Outcomes:
    """A pytest plugin that keeps, for each test, "" if it passed, else what was shown; so too of a blocked one."""

    def __init__(self):
        self.shown, self.collected = {}, []

    def pytest_collection_finish(self, session):
        self.collected = [item.name for item in session.items]

    def pytest_runtest_logreport(self, report):
        name = report.nodeid.rpartition("::")[2]
        if report.failed:
            self.shown[name] = str(report.longrepr)
        elif getattr(report, "graded", {}).get("status") == "blocked":
            self.shown[name] = report.graded["message"]
        elif report.when == "call":
            self.shown.setdefault(name, "")


def grade(engine_cls, phase, code="", seed=DEFAULT_SEED):
    """Test name -> "" or its failure message, for the tests of the phase whose name bears `code`."""
    outcomes = Outcomes()
    select = ("-k", f"test_{code.replace('-', '_')}_") if code else ()
    run(phase, [Graded(engine_cls), outcomes], f"--seed={seed}", *select)
    assert outcomes.shown, f"no test of phase {phase} bears the code {code}"
    return outcomes.shown


def names_of(phase):
    """The names of the phase's tests."""
    outcomes = Outcomes()
    run(phase, [outcomes], "--collect-only")
    return outcomes.collected


def run_engine(phase, spec, outcomes, *more):
    """The exit status of `pytest tests/phaseN --engine spec`; what it prints is printed."""
    return run(phase, [outcomes], "--engine", spec, "-q", *more, quiet=False)


def run(phase, plugins, *more, quiet=True):
    arguments = [f"{ROOT}/tests/phase{phase}", f"--rootdir={ROOT}", f"--config-file={ROOT}/pyproject.toml", *more]
    needless = ["cacheprovider", "unraisableexception", "threadexception"]  # two collect all garbage
    if quiet:
        needless += ["terminal", "doctest", "junitxml", "pastebin", "setuponly", "setupplan", "stepwise"]
    with pytest.MonkeyPatch.context() as patched:
        patched.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")  # each of hundreds of runs would look for them
        return pytest.main([*arguments, *(f"-pno:{plugin}" for plugin in needless)], plugins=plugins)
