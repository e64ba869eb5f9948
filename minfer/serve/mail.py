"""Mail: an engine thread's deltas on their way into event loops, and word of when they are written there."""

import asyncio
import logging
import threading

from minfer.serve.call import Call, Delta

log = logging.getLogger("minfer.serve")

LONGEST_PAUSE = 0.02
"""Seconds that a step at most waits until the tokens of the one before are written, where both need the same cores."""


class Mail:
    """Handed over by the engine's thread, which may wait until the event loop has written what it was handed last."""

    def __init__(self) -> None:
        self._written = threading.Event()
        self._written.set()

    def deliver(self, loop: asyncio.AbstractEventLoop, deltas: list[tuple[Call, Delta]]) -> None:
        """One call into the event loop, for all that wait in it."""
        self._written.clear()
        try:
            loop.call_soon_threadsafe(self._put, loop, deltas)
        except RuntimeError:  # the loop is closed: nobody is left to tell
            log.debug("%d deltas came after the event loop's end", len(deltas))
            self._written.set()

    def wait(self) -> None:
        """Until all is written, but not for long."""
        self._written.wait(LONGEST_PAUSE)

    def _put(self, loop: asyncio.AbstractEventLoop, deltas: list[tuple[Call, Delta]]) -> None:
        for call, delta in deltas:
            call.put(delta)
        loop.call_soon(self._written.set)  # behind those whom the deltas have woken
