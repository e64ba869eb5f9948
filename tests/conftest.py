"""For all tests of this process, however many runs of pytest they make in it."""

import gc
from functools import cache

import pytest


@pytest.hookimpl(wrapper=True)
def pytest_collection():
    """Collecting makes objects that stay: a third of its time would go to finding no garbage among them."""
    gc.disable()
    try:
        return (yield)
    finally:
        keep_what_there_is()
        gc.enable()


@cache  # a run within a run finds it done; to count what is frozen takes as long as a small test
def keep_what_there_is():
    """What has been imported stays. To look at all of it in every full collection is a tenth of the whole run."""
    gc.collect()
    gc.freeze()
