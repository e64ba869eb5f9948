"""SamplingParams: what a request may ask of the sampler, checked where it is made.

Each field carries its help text and its range in the dataclass metadata: the checks, the error messages and the
command line's flags are made from them.
"""

import math
import numbers
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any

import numpy as np

from minfer.core.errors import RequestError


@dataclass(frozen=True)
class Range:
    """The numbers that a field accepts: `low` to `high`, whole or real; `None` too where that means something."""

    kind: type[int] | type[float]
    low: float = -math.inf
    high: float = math.inf
    above_low: bool = False  # `low` itself is refused
    none: str = ""  # what None stands for; empty where None is refused

    def __str__(self) -> str:
        noun = "a whole number" if self.kind is int else "a finite number"
        low = "" if math.isinf(self.low) else f" {'above' if self.above_low else 'of at least'} {self.low:g}"
        high = "" if math.isinf(self.high) else f" and at most {self.high:g}"
        return noun + low + high + (f", or None ({self.none})" if self.none else "")

    def convert(self, name: str, value: object) -> int | float | None:
        """`value` as a plain int or float (numpy scalars are welcome), or `RequestError` that states the range."""
        if value is None and self.none:
            return None
        wanted = numbers.Integral if self.kind is int else numbers.Real
        if not isinstance(value, wanted) or isinstance(value, bool):
            raise RequestError(f"{name} is {value!r}: it must be {self}")
        try:
            number = self.kind(value)  # type: ignore[call-overload]
        except OverflowError:
            number = math.inf
        inside = self.low < number if self.above_low else self.low <= number
        if not inside or number > self.high or (self.kind is float and not math.isfinite(number)):
            raise RequestError(f"{name} is {value!r}: it must be {self}")
        return number


def _number(default: float | None, help: str, kind: type[int] | type[float], *limits: Any, **more: Any) -> Any:
    return field(default=default, metadata={"help": help, "range": Range(kind, *limits, **more)})


_BIAS = Range(float, -1e9, 1e9)
_TOKEN_ID = Range(int, 0)


@dataclass(frozen=True)
class SamplingParams:
    """How the tokens of one request are chosen, and when it ends. The defaults are greedy.

    Order: penalties, logit_bias and the min_tokens ban on the raw logits, then temperature, top_k, top_p, min_p.
    Immutable and hashable: `dataclasses.replace` makes a changed copy, checked again, and a caller's list or
    dict is copied. Raises `RequestError` with the field, the value and what is allowed.
    """

    max_tokens: int | None = _number(
        128, "most tokens to generate (0: none; None: until the context is full)", int, 0, none="no limit"
    )
    min_tokens: int = _number(
        0, "no end token, stop token or stop string ends the text before this many tokens", int, 0
    )
    temperature: float = _number(0.0, "divides the logits; 0 is greedy: the likeliest token, always", float, 0)
    top_k: int = _number(0, "draw from the k likeliest tokens only (0: all)", int, 0)
    top_p: float = _number(
        1.0, "draw from the fewest tokens whose probability reaches p (1: all)", float, 0, 1, above_low=True
    )
    min_p: float = _number(0.0, "drop tokens less likely than this share of the likeliest (0: none)", float, 0, 1)
    repetition_penalty: float = _number(
        1.0, "makes the tokens of prompt and output less likely (above 1) or likelier (below)", float, 0.01, 100
    )
    presence_penalty: float = _number(0.0, "taken off the logit of each token in the output so far", float, -2, 2)
    frequency_penalty: float = _number(
        0.0, "taken off the logit of a token once for each time that the output holds it", float, -2, 2
    )
    logit_bias: Mapping[int, float] = field(
        default_factory=dict, hash=False, metadata={"help": "token id -> what is added to its logit"}
    )
    seed: int | None = _number(None, "makes the draws reproducible (None: a new seed each time)", int, none="a new one")
    stop: str | Sequence[str] = field(
        default=(), metadata={"help": "strings that end the text; they are cut off, with all that follows"}
    )
    stop_token_ids: Sequence[int] = field(default=(), metadata={"help": "token ids that end the text"})
    ignore_eos: bool = field(default=False, metadata={"help": "go on after the model's own end tokens"})
    n: int = _number(1, "how many completions to make of the prompt", int, 1, 1024)
    logprobs: int | None = _number(
        None, "report each output token's log-probability and that many alternatives", int, 0, none="no report"
    )
    prompt_logprobs: int | None = _number(
        None, "report each prompt token's log-probability and that many alternatives", int, 0, none="no report"
    )

    def __post_init__(self) -> None:
        for item in fields(self):
            if "range" in item.metadata:
                self._set(item.name, item.metadata["range"].convert(item.name, getattr(self, item.name)))
        if not isinstance(self.ignore_eos, bool | np.bool_):
            raise RequestError(f"ignore_eos is {self.ignore_eos!r}: it must be True or False")
        self._set("ignore_eos", bool(self.ignore_eos))
        self._set("logit_bias", _checked_bias(self.logit_bias))
        self._set("stop", _checked_stop(self.stop))
        self._set("stop_token_ids", _checked_ids(self.stop_token_ids))
        if self.max_tokens is not None and self.min_tokens > self.max_tokens:
            raise RequestError(f"min_tokens is {self.min_tokens}, more than max_tokens, which is {self.max_tokens}")

    def _set(self, name: str, value: object) -> None:
        object.__setattr__(self, name, value)  # the way for a frozen dataclass to normalise its fields

    @property
    def is_greedy(self) -> bool:
        """Whether the likeliest token is taken without a draw."""
        return self.temperature == 0

    def check(self, vocab_size: int) -> None:
        """Raise `RequestError` if a token id in `logit_bias` or `stop_token_ids` is not below `vocab_size`."""
        for name, ids in (("logit_bias", self.logit_bias), ("stop_token_ids", self.stop_token_ids)):
            outside = [token_id for token_id in ids if token_id >= vocab_size]
            if outside:
                raise RequestError(
                    f"{name} names token {outside[0]}: the model's vocabulary has {vocab_size} tokens, "
                    f"0 to {vocab_size - 1}"
                )


def _checked_bias(bias: object) -> dict[int, float]:
    if not isinstance(bias, Mapping):
        raise RequestError(f"logit_bias is {bias!r}: it must be a mapping from token ids to numbers")
    return {
        _TOKEN_ID.convert("a token id in logit_bias", key): _BIAS.convert(f"logit_bias[{key}]", value)  # type: ignore[misc]
        for key, value in bias.items()
    }


def _checked_stop(stop: object) -> tuple[str, ...]:
    strings = (stop,) if isinstance(stop, str) else stop
    if not isinstance(strings, Sequence) or not all(isinstance(one, str) for one in strings):
        raise RequestError(f"stop is {stop!r}: it must be a string or a list of strings")
    if "" in strings:
        raise RequestError(f"stop is {stop!r}: an empty string would stop every text at its start: leave it out")
    return tuple(strings)


def _checked_ids(ids: object) -> tuple[int, ...]:
    if not isinstance(ids, Iterable) or isinstance(ids, str | bytes | Mapping):
        raise RequestError(f"stop_token_ids is {ids!r}: it must be a list of token ids")
    return tuple(_TOKEN_ID.convert("a token id in stop_token_ids", one) for one in ids)  # type: ignore[misc]
