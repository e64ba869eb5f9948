"""The phases that these tests are about: 5, which schedules requests, and 9, in which a second step is in flight."""

import pytest

from tests.hostile import failing


@pytest.fixture(params=[5, 9], ids=["phase5", "phase9"])
def phases(request, monkeypatch):
    monkeypatch.setattr(failing, "phase", request.param)
