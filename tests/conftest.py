"""For all tests of this process, however many runs of pytest they make in it."""

import gc


def pytest_collection_finish():
    """What has been imported stays. To look at all of it in every full collection is a tenth of the whole run."""
    if not gc.get_freeze_count():
        gc.collect()
        gc.freeze()
