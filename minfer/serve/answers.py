"""Answers: HTTP responses that last as long as a generation, and end with it, with their client, or with their time.

Nobody but these watches whether a client is still there: `receive` says so, and it is asked all the time, for a
streamed answer and a whole one alike, before the first byte too.
"""

import asyncio
import contextlib
from typing import Any

from starlette.responses import Response
from starlette.types import Message, Receive, Scope, Send

from minfer.serve.errors import ApiError, engine_error
from minfer.serve.replies import DONE, Reply, dumps, event
from minfer.serve.service import Job

GRACE = 5.0
"""Seconds after a request's time that its last bytes may take to leave."""
STREAM_HEADERS = [
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-cache"),
    (b"x-accel-buffering", b"no"),
]


class Answer(Response):
    """Does `work` until it is done, or until the client has gone; then closes the job."""

    def __init__(self, job: Job, reply: Reply, seconds: float) -> None:
        super().__init__()
        self.job, self.reply, self.seconds = job, reply, seconds

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer the request. Raises `ApiError` if nothing was sent yet."""
        work = asyncio.ensure_future(self.work(send))
        gone = asyncio.ensure_future(_gone(receive))
        out_of_time = ApiError(
            f"the request took longer than {self.seconds:g} s", status=504, kind="server_error", code="timeout"
        )
        timer = asyncio.get_running_loop().call_later(self.seconds, self.job.expire, out_of_time)
        try:
            await asyncio.wait((work, gone), timeout=self.seconds + GRACE, return_when=asyncio.FIRST_COMPLETED)
            self._note(scope, gone.done() and not work.done())
            if work.done():
                work.result()
        finally:
            timer.cancel()
            self.job.close()
            for task in (work, gone):
                task.cancel()
                with contextlib.suppress(asyncio.CancelledError, Exception):
                    await task

    async def work(self, send: Send) -> None:
        """Wait for the answer and send it."""
        await self.job.finished()
        await send_whole(send, dumps(self.reply.body()))

    def _note(self, scope: Scope, left: bool) -> None:
        """Numbers for the access log."""
        sequences = self.job.call.sequences
        ends = [sequence.finish_reason for sequence in sequences]
        first = [sequence.timestamps.tokens[0] for sequence in sequences if sequence.timestamps.tokens]
        scope["minfer.log"].update(
            prompt_tokens=sum(sequence.num_prompt for sequence in sequences),
            completion_tokens=sum(len(sequence.output_ids) for sequence in sequences),
            finish="client left" if left else ",".join(str(end) for end in ends if end is not None),
        )
        if first:
            scope["minfer.log"]["ttft_ms"] = round(1000 * (min(first) - sequences[0].timestamps.arrived), 1)


class StreamedAnswer(Answer):
    """One event for each token, as soon as it is known.

    Status 200 is sent with the first event, so what fails before it is an error as any other; what fails later is an
    event with an `error` in it, at which OpenAI's clients raise.
    """

    async def work(self, send: Send) -> None:
        """Send what comes; several events at once, where several are there."""
        begun = False
        try:
            async for come in self.job.deltas():
                body = b"".join(chunk for delta in come for chunk in self.reply.chunks(delta))
                if body and not begun:
                    await send({"type": "http.response.start", "status": 200, "headers": STREAM_HEADERS})
                    begun = True
                if body:
                    await send(_more(body))
        except ApiError as error:
            if not begun:
                raise
            await send(_more(event(error.body) + DONE, last=True))
            return
        except Exception as error:  # a chunk that cannot be made: the stream must not just stop
            if not begun:
                raise
            failed = engine_error(f"{type(error).__name__}: {error}")
            await send(_more(event(failed.body) + DONE, last=True))
            raise
        await send(_more(self.reply.tail(), last=True))


async def send_whole(send: Send, body: bytes) -> None:
    """A JSON body, with status 200."""
    headers = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    await send(_more(body, last=True))


def _more(body: bytes, last: bool = False) -> Message:
    return {"type": "http.response.body", "body": body, "more_body": not last}


async def _gone(receive: Receive) -> Any:
    while (await receive())["type"] != "http.disconnect":
        pass
