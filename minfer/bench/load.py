"""Load: requests to a server that speaks OpenAI's API, at a rate or so many at once, and what their clients saw.

Latencies are those of `minfer.core.measures.latency`, taken at the client: a request arrives when it is sent. One event
of the stream is one token. Sockets and the standard library only, so that the client costs little of what it measures.
"""

import asyncio
import gc
import json
import math
import random
import time
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

import numpy as np

from minfer.core.measures.latency import gaps, percentile, tpot
from minfer.phase11.limits import Limits

DONE = b"data: [DONE]\n\n"
Part = tuple[float, bytes]  # when they came, and the bytes


@dataclass(frozen=True)
class Plan:
    """What is asked of a server; the names are those of vLLM's `bench serve`."""

    base_url: str
    model: str
    prompts: list[Any]  # texts, or lists of token ids
    output_len: int
    endpoint: str = "/v1/completions"
    request_rate: float = float("inf")  # a second; inf: all at once
    max_concurrency: int | None = None
    seed: int = 0
    extra: dict[str, Any] = field(default_factory=dict)  # more fields of the body


@dataclass
class Result:
    """What one client saw; seconds of one clock."""

    sent: float = 0.0
    times: list[float] = field(default_factory=list)  # of each token
    text: str = ""
    status: int = 0
    error: str = ""
    prompt_tokens: int = 0

    @property
    def completed(self) -> bool:
        """Whether it got what it asked for."""
        return self.status == 200 and not self.error and bool(self.times)


async def run(plan: Plan) -> list[Result]:
    """Send all, and return when all are answered."""
    gate = asyncio.Semaphore(plan.max_concurrency or len(plan.prompts))
    tasks = []
    gc.collect()
    gc.freeze()  # a pause of the collector would be taken for one of the server
    try:
        async for prompt in _arrivals(plan):
            tasks.append(asyncio.create_task(_within(gate, plan, prompt)))
        answered = await asyncio.gather(*tasks)
    finally:
        gc.unfreeze()
    return [_heard(result, parts) for result, parts in answered]


async def _arrivals(plan: Plan) -> AsyncIterator[Any]:
    """The prompts at their times: a Poisson process, scaled so that every seed has the same rate."""
    if plan.request_rate == float("inf"):
        for prompt in plan.prompts:
            yield prompt
        return
    drawn = np.random.default_rng(plan.seed).exponential(size=len(plan.prompts))
    due = np.cumsum(drawn) * (len(plan.prompts) / plan.request_rate / drawn.sum())
    start = time.perf_counter()
    for prompt, at in zip(plan.prompts, due, strict=True):
        await asyncio.sleep(max(0.0, start + at - time.perf_counter()))
        yield prompt


async def _within(gate: asyncio.Semaphore, plan: Plan, prompt: Any) -> tuple[Result, list[Part]]:
    async with gate:
        result = Result(sent=time.perf_counter())
        try:
            return result, await _ask(plan, prompt)
        except OSError as error:
            result.error = f"{type(error).__name__}: {error}"
            return result, []


def _heard(result: Result, parts: list[Part]) -> Result:
    """`result` with what its `parts` say; an answer that cannot be read is its error."""
    try:
        if not result.error:
            _read(parts, result)
    except (EOFError, ValueError, LookupError) as error:
        result.error = f"{type(error).__name__}: {error}"
    return result


async def _ask(plan: Plan, prompt: Any) -> list[Part]:
    """One request, by HTTP/1.0: the body then ends with the connection, and is in no chunks."""
    place = urlsplit(plan.base_url)
    body = json.dumps(_body(plan, prompt)).encode()
    head = (
        f"POST {plan.endpoint} HTTP/1.0\r\nhost: {place.netloc}\r\ncontent-type: application/json\r\n"
        f"content-length: {len(body)}\r\n\r\n"
    )
    loop = asyncio.get_running_loop()
    transport, listener = await loop.create_connection(Listener, place.hostname or "", place.port or 80)
    try:
        transport.write(head.encode() + body)
        await listener.ended
    finally:
        transport.close()
    return listener.parts


class Listener(asyncio.Protocol):
    """Records what arrives, and when. It is parsed after the run: parsing now would take CPU time from the server."""

    def __init__(self) -> None:
        self.parts: list[Part] = []
        self.ended = asyncio.get_running_loop().create_future()

    def data_received(self, data: bytes) -> None:
        """Some bytes: part of an event, or several events."""
        self.parts.append((time.perf_counter(), data))
        if data.endswith(DONE):
            self.connection_lost(None)

    def connection_lost(self, error: Exception | None) -> None:
        """Nothing more comes."""
        if not self.ended.done():
            self.ended.set_result(None) if error is None else self.ended.set_exception(error)


def _body(plan: Plan, prompt: Any) -> dict[str, Any]:
    fixed = {"model": plan.model, "max_tokens": plan.output_len, "temperature": 0, "stream": True, **plan.extra}
    if plan.endpoint.endswith("chat/completions"):
        return {**fixed, "messages": [{"role": "user", "content": prompt}]}
    return {**fixed, "prompt": prompt}


def _read(parts: list[Part], result: Result) -> None:
    """An answer: its status, then its events until [DONE], or an error. Raises `EOFError` if it has no end."""
    lines = _lines(parts)
    result.status = int(next(lines, (0.0, b"HTTP/1.0 0"))[1].split()[1])
    while next(lines, (0.0, b""))[1].strip():
        pass
    if result.status != 200:
        result.error = b"".join(data for _, data in parts).partition(b"\r\n\r\n")[2][:1000].decode(errors="replace")
        return
    for at, line in lines:
        if line.startswith(b"data: [DONE]"):
            return
        if line.startswith(b"data: {"):
            _note(json.loads(line[6:]), at, result)
        if result.error:
            return
    raise EOFError("the stream ended without [DONE]")


def _lines(parts: list[Part]) -> Iterator[Part]:
    """Each whole line, with the time at which its end came."""
    rest = b""
    for at, data in parts:
        *whole, rest = (rest + data).split(b"\n")
        for line in whole:
            yield at, line


def _note(event: dict[str, Any], at: float, result: Result) -> None:
    """A chunk without choices has the numbers of tokens, and is no token."""
    if "error" in event:
        result.error = event["error"]["message"]
    elif choices := event.get("choices"):
        result.times.append(at)
        result.text += choices[0].get("text") or choices[0].get("delta", {}).get("content") or ""
    elif event.get("usage"):
        result.prompt_tokens = event["usage"]["prompt_tokens"]


def report(results: list[Result], slo: Limits | None = None) -> dict[str, Any]:
    """Figures by the names of vLLM's JSON; milliseconds; over requests that completed."""
    done = [result for result in results if result.completed]
    end = max((result.times[-1] for result in done), default=0.0)
    duration = end - min((result.sent for result in results), default=0.0) if done else 0.0
    tokens = sum(len(result.times) for result in done)
    ttfts = [result.times[0] - result.sent for result in done]
    tpots = [rate for result in done if (rate := tpot(result.times)) is not None]
    whole = [result.times[-1] - result.sent for result in done]
    made = {
        "completed": len(done),
        "failed": len(results) - len(done),
        "refused": sum(result.status == 429 for result in results),
        "duration": duration,
        "total_input_tokens": sum(result.prompt_tokens for result in done),
        "total_output_tokens": tokens,
        "request_throughput": len(done) / duration if duration else 0.0,
        "output_throughput": tokens / duration if duration else 0.0,
        **_spread("ttft", ttfts),
        **_spread("tpot", tpots),
        **_spread("itl", [gap for result in done for gap in gaps(result.times)]),
        **_spread("e2el", whole),
    }
    if slo is not None and duration:
        each = zip(ttfts, [tpot(result.times) or math.nan for result in done], whole, done, strict=True)
        met = sum(slo.met(first, rate, last, len(result.times)) for first, rate, last, result in each)
        made["request_goodput"] = met / duration
    return made


def _spread(name: str, seconds: list[float]) -> dict[str, float | None]:
    if not seconds:
        return {f"{kind}_{name}_ms": None for kind in ("mean", "median", "p99")}
    mean = sum(seconds) / len(seconds)
    values = {"mean": mean, "median": percentile(seconds, 50), "p99": percentile(seconds, 99)}
    return {f"{kind}_{name}_ms": 1000 * value for kind, value in values.items()}


IDS = range(16, 256)
"""Token ids that every vocabulary has, and that are no control tokens."""


def random_prompts(count: int, length: int, seed: int) -> list[list[int]]:
    """Prompts of token ids, no two of which begin alike for as long as a block, so that no cache of prefixes helps."""
    drawn = random.Random(seed)
    return [drawn.choices(IDS, k=length) for _ in range(count)]
