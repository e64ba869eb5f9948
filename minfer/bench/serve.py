"""A server under load; and the same requests given to an engine directly, which is what a server can reach at most."""

import asyncio
import json
import time
import urllib.request
from contextlib import closing
from typing import Any

from minfer.bench.load import Plan, Result, report, run
from minfer.core.errors import RequestError
from minfer.core.params import SamplingParams

WARMUPS = 4


def served(base_url: str) -> str:
    """The name of the model that a server has. Raises `RequestError`."""
    try:
        with urllib.request.urlopen(f"{base_url}/v1/models", timeout=10) as answer:
            return json.load(answer)["data"][0]["id"]
    except (OSError, ValueError, LookupError) as error:
        raise RequestError(
            f"no server at {base_url} ({error}): start one with minfer serve, or give --base-url"
        ) from error


def measure(plan: Plan, warmups: int = WARMUPS) -> list[Result]:
    """Warm up with as many requests, of other prompts' ends, then run the plan. Raises `RequestError` if all fail."""
    if warmups:
        ends = [prompt[::-1] for prompt in plan.prompts[:warmups]]
        rehearsal = Plan(plan.base_url, plan.model, ends, min(8, plan.output_len), plan.endpoint, extra=plan.extra)
        asyncio.run(run(rehearsal))
    results = asyncio.run(run(plan))
    if not any(result.completed for result in results):
        raise RequestError(f"no request of {len(results)} was answered: {results[0].status} {results[0].error[:300]}")
    return results


def run_alone(engine: Any, prompts: list[list[int]], output_len: int, at_once: int) -> dict[str, Any]:
    """The same requests given to an engine in this process, `at_once` together, then the next."""
    params = SamplingParams(max_tokens=output_len, ignore_eos=True)
    sequences = engine.sequences([prompt[::-1] for prompt in prompts[:WARMUPS]], params)
    _drain(engine, sequences)
    results: list[Result] = []
    for first in range(0, len(prompts), at_once):
        started = time.perf_counter()
        sequences = engine.sequences(prompts[first : first + at_once], params)
        _drain(engine, sequences)
        results += [Result(started, one.timestamps.tokens, "", 200, "", one.num_prompt) for one in sequences]
    return report(results)


def _drain(engine: Any, sequences: list[Any]) -> None:
    with closing(engine.run(sequences)) as steps:
        for _ in steps:
            pass
