"""What every phase promises, asked of phase 6."""

import pytest

from tests.contract.answers import Answers
from tests.contract.isolation import Isolation
from tests.contract.requests import Requests


@pytest.mark.points(needs="P6-20")
class TestContract(Answers, Requests, Isolation):
    pass
