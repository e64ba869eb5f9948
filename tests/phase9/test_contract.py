"""What every phase promises, asked of phase 9."""

import pytest

from tests.contract.answers import Answers
from tests.contract.isolation import Isolation
from tests.contract.requests import Requests


@pytest.mark.points(needs="P9-01")
class TestContract(Answers, Requests, Isolation):
    pass
