"""What every phase promises, asked of phase 9."""

from tests.contract.answers import Answers
from tests.contract.isolation import Isolation
from tests.contract.requests import Requests


class TestContract(Answers, Requests, Isolation):
    pass
