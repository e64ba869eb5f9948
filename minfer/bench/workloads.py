"""Workloads: fixed lists of requests, the same for every contestant. Lengths are fixed by ignoring end tokens."""

import random
from dataclasses import dataclass

from minfer.core.params import SamplingParams


@dataclass(frozen=True)
class Request:
    """One request by token ids: what it says does not matter to speed."""

    prompt_ids: list[int]
    params: SamplingParams


@dataclass(frozen=True)
class Workload:
    """Requests that all arrive at once."""

    name: str
    about: str
    requests: list[Request]
    figure: str = "output"  # what its contestants are compared by: output, decode or prefill throughput

    @property
    def input_tokens(self) -> int:
        """Prompt tokens in all."""
        return sum(len(request.prompt_ids) for request in self.requests)

    @property
    def output_tokens(self) -> int:
        """Tokens to generate in all."""
        return sum(request.params.max_tokens or 0 for request in self.requests)


def single(vocab_size: int, prompt: int = 128, new: int = 128, seed: int = 0) -> Workload:
    """One request: what a decode step costs, and what a cache saves.

    Without a cache a step computes all tokens so far, so the longer the prompt, the more is saved: 128 tokens are a
    short question with some text. (After 16 the mean step computes 80 tokens, after 128 it computes 192.)
    """
    about = f"1 request, {prompt} tokens in, {new} out"
    return Workload("single", about, [_request(random.Random(seed), vocab_size, prompt, new)])


def mixed(vocab_size: int, count: int = 32, low: int = 16, high: int = 128, seed: int = 0) -> Workload:
    """Many requests whose lengths differ: what batching and scheduling are for."""
    draw = random.Random(seed)
    requests = [_request(draw, vocab_size, draw.randint(low, high), draw.randint(low, high)) for _ in range(count)]
    return Workload("mixed", f"{count} requests at once, {low}–{high} tokens in and out", requests)


def shared_prefix(vocab_size: int, count: int = 16, prefix: int = 256, own: int = 8, new: int = 8) -> Workload:
    """Requests that begin alike: what prefix sharing is for."""
    draw = random.Random(1)
    common = _ids(draw, vocab_size, prefix)
    requests = [_request(draw, vocab_size, own, new, common) for _ in range(count)]
    return Workload("prefix", f"{count} requests with one {prefix}-token prefix, {own} of their own", requests)


def decode(vocab_size: int, count: int, prompt: int = 32, new: int = 64) -> Workload:
    """Requests of one length that run side by side from start to end: what a step of `count` rows costs."""
    draw = random.Random(count)
    requests = [_request(draw, vocab_size, prompt, new) for _ in range(count)]
    noun = "request" if count == 1 else "requests"
    about = f"{count} {noun} at once, {prompt} tokens in, {new} out"
    return Workload(f"decode-{count}", about, requests, "decode")


def prefill(vocab_size: int, prompt: int = 512) -> Workload:
    """One long prompt and one token."""
    request = _request(random.Random(2), vocab_size, prompt, 1)
    return Workload("prefill", f"1 prompt of {prompt} tokens", [request], "prefill")


def batch(vocab_size: int, count: int, prompt: int, new: int, seed: int = 0) -> Workload:
    """Requests at once whose lengths differ by up to half: what the rows of a table are compared on."""
    draw = random.Random(seed)
    requests = [_request(draw, vocab_size, _about(draw, prompt), _about(draw, new)) for _ in range(count)]
    return Workload("table", f"{count} requests at once, about {prompt} tokens in, {new} out", requests)


def _about(draw: random.Random, length: int) -> int:
    return draw.randint(max(1, length // 2), length + length // 2)


def _request(draw: random.Random, vocab_size: int, prompt: int, new: int, common: list[int] | None = None) -> Request:
    return Request([*(common or []), *_ids(draw, vocab_size, prompt)], SamplingParams(max_tokens=new, ignore_eos=True))


def _ids(draw: random.Random, vocab_size: int, count: int) -> list[int]:
    return [draw.randrange(3, vocab_size) for _ in range(count)]
