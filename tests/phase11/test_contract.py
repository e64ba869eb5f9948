"""What every phase promises, asked of phase 11."""

import pytest

from tests.contract.answers import Answers
from tests.contract.isolation import Isolation
from tests.contract.requests import Requests


@pytest.mark.points(needs="P11-07")
class TestContract(Answers, Requests, Isolation):
    pass
