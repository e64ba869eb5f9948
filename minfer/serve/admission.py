"""Admission: how much may be in hand at once. Who comes when it is full is told so at once, and when to come again."""

from collections.abc import Callable

from minfer.serve.errors import ApiError, overloaded
from minfer.serve.limits import ServerLimits

LONGEST_WAIT = 60
"""Seconds: the most that Retry-After says."""


class Admission:
    """Counts completions and tokens in hand, running and waiting. In the event loop only, so no two can pass at once.

    Completions are counted before their prompts become tokens, which is work too; tokens after that.
    """

    def __init__(
        self, limits: ServerLimits, tokens_per_s: Callable[[], float], refused: Callable[[], None] = lambda: None
    ) -> None:
        self.limits, self._tokens_per_s, self._refused = limits, tokens_per_s, refused
        self.requests = self.tokens = 0
        self.rejected = 0

    def enter(self, requests: int) -> "Ticket":
        """Let so many completions in. Raises `ApiError`: 429 if it is full, 400 if there can never be room for them."""
        most = self.limits.max_requests
        if requests > most:
            raise ApiError(f"{requests} completions in one request: this server takes {most} at once")
        if self.requests + requests > most:
            raise self.refusal(f"{self.requests} of {most} completions are in hand, {requests} more were asked for")
        return Ticket(self, requests)

    def refusal(self, message: str) -> ApiError:
        """Count and make a 429."""
        self.rejected += 1
        self._refused()
        return overloaded(f"{message}: come again in some seconds", self._wait())

    def _wait(self) -> int:
        """Seconds until about half of what is in hand is done."""
        rate = self._tokens_per_s()
        wait = self.tokens / rate / 2 if rate > 0 else 1.0
        return max(1, min(LONGEST_WAIT, round(wait)))


class Ticket:
    """The place of one API call; to be closed when it is over, in whatever way."""

    def __init__(self, admission: Admission, requests: int) -> None:
        self.admission, self.requests, self.tokens = admission, requests, 0
        admission.requests += requests

    def add_tokens(self, tokens: int) -> None:
        """What the completions can come to. Raises `ApiError` as `Admission.enter`."""
        admission, most = self.admission, self.admission.limits.max_tokens_in_hand
        if tokens > most:
            raise ApiError(
                f"prompts and answers can come to {tokens} tokens: this server takes {most}: lower max_tokens"
            )
        if admission.tokens + tokens > most:
            raise admission.refusal(f"{admission.tokens} of {most} tokens are in hand, {tokens} more were asked for")
        self.tokens = tokens
        admission.tokens += tokens

    def close(self) -> None:
        """Make room for others; harmless when done twice."""
        self.admission.requests -= self.requests
        self.admission.tokens -= self.tokens
        self.requests = self.tokens = 0
