"""What every phase promises, asked of phase 7."""

import pytest

from tests.contract.answers import Answers
from tests.contract.isolation import Isolation
from tests.contract.requests import Requests


@pytest.mark.points(needs="P7-06")
class TestContract(Answers, Requests, Isolation):
    pass
