"""Service: one model on one or several engines, and what it takes to answer an API call with them."""

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

from minfer.core.errors import MinferError, RequestError
from minfer.core.params import SamplingParams
from minfer.core.sequence import FinishReason, Sequence
from minfer.phase11.limits import Limits
from minfer.serve.admission import Admission, Ticket
from minfer.serve.call import Call, Delta
from minfer.serve.engine_thread import EngineThread, State
from minfer.serve.errors import ApiError, unavailable
from minfer.serve.figures import Figures
from minfer.serve.limits import ServerLimits
from minfer.serve.metrics import Metrics
from minfer.serve.policy import Policy
from minfer.serve.protocol import ChatRequest, CompletionRequest, Sampling


@dataclass(frozen=True)
class About:
    """What the service says of itself."""

    model: str  # its name for clients
    root: str  # where it came from
    phase: int
    version: str
    created: int

    @property
    def fingerprint(self) -> str:
        """Whatever may change an answer to the same request."""
        return f"minfer-{self.version}-phase{self.phase}"


class Service:
    """Takes calls in, gives them to the engine that has least to do, and keeps count of what they experience."""

    def __init__(
        self,
        about: About,
        loads: list[Callable[[], Any]],
        policy: Policy,
        limits: ServerLimits,
        slo: Limits | None = None,
    ) -> None:
        self.about, self.limits, self.policy = about, limits, policy
        self.engines = [EngineThread(load, policy) for load in loads]
        self.figures = Figures(slo)
        self.metrics = Metrics(about.model, self.engines)
        self.admission = Admission(
            limits, lambda: self.figures.tokens_per_s(time.perf_counter()), self.metrics.rejections.inc
        )
        self.draining = False
        self.started = time.time()
        self._tokenisers = ThreadPoolExecutor(2, "tokenise")  # off the event loop, beside the engine

    # ---- life ----------------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Begin to load the engines, one after another: two would take each other's memory for free."""
        self.engines[0].start()

    def load_all(self) -> None:
        """Wait until all are loaded. Raises what one of them failed with."""
        for thread in self.engines:
            if thread.state is State.LOADING and not thread.thread.is_alive():
                thread.start()
            thread.ready.wait()
            if thread.error is not None:
                raise thread.error

    def drain(self) -> None:
        """Take nothing new in."""
        self.draining = True

    def end_all(self, reason: ApiError) -> None:
        """End whatever is in hand."""
        for thread in self.engines:
            thread.end_all(reason)

    def stop(self) -> None:
        """End the engines' threads."""
        for thread in self.engines:
            thread.stop()
        self._tokenisers.shutdown(wait=False, cancel_futures=True)

    @property
    def state(self) -> str:
        """`ok` if requests are served, else why not."""
        if self.draining:
            return "draining"
        if any(thread.state is State.LOADING for thread in self.engines):
            return str(State.LOADING)
        healthy = [thread.healthy(self.limits.stall_seconds) for thread in self.engines]
        if all(healthy):
            return "ok"
        can_serve = any(thread.can_serve for thread in self.engines)
        return "degraded" if any(healthy) else "stalled" if can_serve else str(State.DEAD)

    @property
    def ready(self) -> list[EngineThread]:
        """The engines that serve."""
        return [thread for thread in self.engines if thread.state is State.READY]

    @property
    def engine(self) -> Any:
        """Any engine: they are alike. Raises `ApiError` (503) if there is none."""
        if not self.ready:
            raise unavailable(f"the server is {self.state}", self.state, 5)
        return self.ready[0].engine

    # ---- an API call ---------------------------------------------------------------------------------------------

    def check(self, body: Sampling, chat: bool) -> None:
        """What the body's type does not say. Raises `ApiError`."""
        if self.draining:
            raise unavailable("the server is shutting down", "shutting_down", 5)
        self.check_model(body.model)
        body.refuse_unsupported(type(body).REFUSED)  # type: ignore[attr-defined]
        limits, alternatives = self.limits, getattr(body, "top_logprobs" if chat else "logprobs")
        stops = [body.stop] if isinstance(body.stop, str) else body.stop or []
        for name, value, most in (
            ("n", body.n or 1, limits.max_n),
            ("top_logprobs" if chat else "logprobs", alternatives or 0, limits.max_logprobs),
            ("stop", len(stops), limits.max_stops),
        ):
            if value > most:
                raise ApiError(f"{name}: {value} were asked for, this server gives at most {most}", param=name)

    def check_model(self, name: str | None) -> None:
        """Raise `ApiError` (404) unless the model of that name is the one that is served."""
        if name is not None and name != self.about.model:
            raise ApiError(
                f"model {name!r} is not served here: it is {self.about.model!r}",
                status=404,
                param="model",
                code="model_not_found",
            )

    async def begin(self, body: CompletionRequest | ChatRequest) -> "Job":
        """Check, count and submit a call. Raises `ApiError`."""
        chat = isinstance(body, ChatRequest)
        self.check(body, chat)
        arrived = self.engine.device.clock()
        prompts, param = body.prompts, "messages" if chat else "prompt"
        ticket = self.admission.enter(len(prompts) * (body.n or 1))
        try:
            params = self._params(body)
            sequences = await self._sequences(prompts, params, param)
            for sequence in sequences:
                sequence.timestamps.arrived = arrived
            call = Call(sequences)
            ticket.add_tokens(call.num_tokens)
            thread = min(self.ready or self.engines, key=lambda one: one.load)
            thread.submit(call)
        except BaseException:
            ticket.close()
            raise
        return Job(self, thread, call, ticket)

    def _params(self, body: CompletionRequest | ChatRequest) -> SamplingParams:
        try:
            return body.sampling
        except RequestError as error:
            raise ApiError(str(error), param=_field_of(str(error))) from error

    async def _sequences(self, prompts: Any, params: SamplingParams, param: str) -> list[Sequence]:
        try:
            return await self.off_loop(self.engine.sequences, prompts, params)
        except MinferError as error:
            code = "context_length_exceeded" if "the context is" in str(error) else None
            raise ApiError(str(error), param=_field_of(str(error)) or param, code=code) from error

    async def off_loop(self, work: Callable[..., Any], *args: Any) -> Any:
        """Do something that takes time, such as making tokens, without stopping the event loop."""
        return await asyncio.get_running_loop().run_in_executor(self._tokenisers, work, *args)


class Job:
    """One API call that runs; `close` it when it is over, in whatever way: what has not finished is taken back."""

    def __init__(self, service: Service, thread: EngineThread, call: Call, ticket: Ticket) -> None:
        self.service, self.thread, self.call, self.ticket = service, thread, call, ticket
        self.last: dict[int, float] = {}  # index -> when its last token was known
        self.open = set(range(len(call.sequences)))

    async def deltas(self) -> AsyncIterator[list[Delta]]:
        """The call's deltas, each counted. Raises the `ApiError` that one of its sequences ended with."""
        async for come in self.call.deltas():
            for delta in come:
                self._count(delta)
            failed = next((delta.error for delta in come if delta.error is not None), None)
            yield [delta for delta in come if delta.error is None]
            if failed is not None:
                raise failed

    async def finished(self) -> None:
        """Wait for its end. Raises `ApiError`."""
        async for _ in self.deltas():
            pass

    def expire(self, error: ApiError) -> None:
        """It has taken too long."""
        self.call.expire(error)

    def close(self) -> None:
        """Take back what has not finished, and make room."""
        self.ticket.close()
        for index in self.open:
            self._count_end(index, FinishReason.ABORT)
        if self.open:
            self.thread.abort(self.call)
        else:
            self.thread.forget(self.call)
        self.open = set()

    def _count(self, delta: Delta) -> None:
        service = self.service
        if delta.times:
            before = self.last.get(delta.choice)
            service.figures.came(delta.times, before)
            service.metrics.came(delta.times, before)
            self.last[delta.choice] = delta.times[-1]
        if delta.error is None and delta.finish_reason is not None:
            self.open.discard(delta.choice)
            self._count_end(delta.choice, delta.finish_reason)

    def _count_end(self, index: int, reason: FinishReason) -> None:
        sequence, figures = self.call.sequences[index], self.service.figures
        ended_well = reason is not FinishReason.ABORT
        if not ended_well:
            figures.failed += 1
        self.service.metrics.ended(sequence, reason, figures.finished(sequence) if ended_well else None)


def _field_of(message: str) -> str | None:
    """The field that a message of `SamplingParams` begins with, if it does."""
    word = message.split(" ", 1)[0].partition("[")[0]
    return word if word in SamplingParams.__dataclass_fields__ else None
