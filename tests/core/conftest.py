"""Chance would fail who has changed nothing: what is made up or drawn in these tests is the same in every run."""

import pytest
import torch
from hypothesis import HealthCheck, settings

# However slow a machine is: that is no mistake.
settings.register_profile(
    "same every time", derandomize=True, deadline=None, database=None, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("same every time")


@pytest.fixture(autouse=True)
def same_numbers():
    """Whatever ran before in this process, which is another matter in every run of several processes."""
    torch.manual_seed(0)
