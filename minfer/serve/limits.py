"""ServerLimits: how much of anything a client, or all of them together, may ask for."""

from dataclasses import dataclass, fields

from minfer.core.errors import OptionsError
from minfer.core.options import option


@dataclass(frozen=True)
class ServerLimits:
    """The server's options beside those of its engine; each bounds something that would be unbounded without it."""

    max_requests: int = option(256, "most completions in hand, running and waiting; beyond it: 429")
    max_tokens_in_hand: int = option(2**21, "most tokens that those may come to, prompts and answers; beyond it: 429")
    max_body_bytes: int = option(4 * 2**20, "largest request body, counted while it is read; beyond it: 413")
    max_n: int = option(64, "most samples of one prompt")
    max_stops: int = option(16, "most stop strings of a request")
    max_logprobs: int = option(20, "most alternatives per token")
    body_seconds: float = option(30.0, "longest that a request's body may take to arrive")
    request_seconds: float = option(600.0, "longest that a request may take, from its arrival to its last byte")
    stall_seconds: float = option(60.0, "a step that takes longer makes /health say 503")
    drain_seconds: float = option(30.0, "after SIGTERM: how long running requests may take to finish")

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            least = 0 if field.name in ("max_logprobs", "drain_seconds") else 1
            if not least <= value < float("inf"):
                raise OptionsError(f"{field.name} = {value}: give a number of at least {least}")
