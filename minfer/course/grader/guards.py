"""Guards around the loading of a file that is to be graded: no later phase, no network, no work, no endless loop."""

import importlib
import importlib.abc
import os
import re
import signal
import socket
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from importlib.machinery import ModuleSpec
from types import FrameType, ModuleType
from typing import Any

import minfer
from minfer.course.source.outline import PHASE

LOAD_SECONDS = 20
FROM_META = 2  # the first phase whose engine may build on `meta`, where torch imports its compiler, for a second
SOURCES = re.escape(os.path.dirname(os.path.abspath(minfer.__file__)))
ANSWERS = re.compile(rf"{SOURCES}[/\\]phase(\d+)[/\\]")
MUTANTS = re.compile(r"tests[./\\]mutants\b")


class Forbidden(Exception):
    """Something that a file must not do while it is loaded; the message says what and why."""


class PhaseBlocker(importlib.abc.MetaPathFinder):
    """Refuses to import `minfer.phaseM` for M >= `phase`."""

    def __init__(self, phase: int) -> None:
        self.phase = phase

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Raise for the modules that are blocked; leave the others to the next finder."""
        if self.blocks(name):
            raise Forbidden(f"imports {name}, the answer to what is graded: build on minfer.phase{self.phase - 1}")
        return None

    def blocks(self, name: str) -> bool:
        """Whether the module belongs to a phase that must not be seen, or to the right engines of another make."""
        match = PHASE.match(name)
        return bool(MUTANTS.match(name)) or (match is not None and int(match[1]) >= self.phase)

    def hides(self, path: str) -> bool:
        """Whether the file is the source of what is blocked."""
        match = ANSWERS.match(path)
        return bool(MUTANTS.search(path)) or (match is not None and int(match[1]) >= self.phase)


class OpenFiles:
    """Watches, once there is a blocker, what is opened. Python has no way to take such a watch away again."""

    def __init__(self) -> None:
        self.blockers: list[PhaseBlocker] = []
        self.watching = False

    def watch(self) -> None:
        """Begin; idempotent."""
        if not self.watching:
            sys.addaudithook(self._note)
            self.watching = True

    def _note(self, event: str, arguments: tuple[Any, ...]) -> None:
        if event != "open" or not self.blockers or not isinstance(arguments[0], str):
            return
        path = os.path.realpath(arguments[0])  # not that of a link to it
        if self.blockers[-1].hides(path):
            raise Forbidden(f"opens {path}, the answer to what is graded: it is to be written, not read")


OPEN_FILES = OpenFiles()


@contextmanager
def phases_blocked(phase: int) -> Iterator[None]:
    """Make `minfer.phaseM`, M >= phase, impossible to import, also where it was imported before."""
    blocker = PhaseBlocker(phase)
    hidden = {name: module for name, module in sys.modules.items() if blocker.blocks(name)}
    for name in hidden:
        del sys.modules[name]
    sys.meta_path.insert(0, blocker)
    try:
        yield
    finally:
        sys.meta_path.remove(blocker)
        sys.modules.update(hidden)


@contextmanager
def answers_hidden(phase: int) -> Iterator[None]:
    """Make `minfer.phaseM`, M >= phase, impossible to import and to read."""
    blocker = PhaseBlocker(phase)
    OPEN_FILES.watch()
    with phases_blocked(phase):
        OPEN_FILES.blockers.append(blocker)
        try:
            yield
        finally:
            OPEN_FILES.blockers.remove(blocker)


@contextmanager
def no_network() -> Iterator[None]:
    """Make every connection an error."""

    def refuse(*_: Any, **__: Any) -> None:
        raise Forbidden("connects to the network while it is imported: put that into a function")

    connect = socket.socket.connect
    socket.socket.connect = refuse  # type: ignore[method-assign]
    try:
        yield
    finally:
        socket.socket.connect = connect  # type: ignore[method-assign]


@contextmanager
def no_forward() -> Iterator[None]:
    """Make every call of a module an error: a file that is imported defines, it does not run."""
    from torch.nn.modules.module import register_module_forward_pre_hook

    def refuse(module: Any, _: Any) -> None:
        raise Forbidden("runs a model while it is imported: put that under `if __name__ == '__main__':`")

    handle = register_module_forward_pre_hook(refuse)
    try:
        yield
    finally:
        handle.remove()


@contextmanager
def time_limit(seconds: float, message: str) -> Iterator[None]:
    """Raise `Forbidden` after so many seconds, where the system has timers and this is the main thread."""
    if not hasattr(signal, "setitimer") or threading.current_thread() is not threading.main_thread():
        yield
        return

    def stop(signum: int, frame: FrameType | None) -> None:
        raise Forbidden(message)

    handler = signal.signal(signal.SIGALRM, stop)
    left, _ = signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, left)
        signal.signal(signal.SIGALRM, handler)


@contextmanager
def time_stands_still() -> Iterator[None]:
    """Suspend the time limit that this stands in: it is another one's time that is taken here."""
    if not hasattr(signal, "setitimer"):
        yield
        return
    left, _ = signal.setitimer(signal.ITIMER_REAL, 0)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, left)


def preload(phase: int) -> None:
    """Import what the first test would: a time limit that strikes within an import leaves half a module behind."""
    importlib.import_module("minfer.course.lab.lab")
    if phase >= FROM_META:
        importlib.import_module("torch._dynamo")


@contextmanager
def import_guards(phase: int, seconds: float) -> Iterator[None]:
    """All of them, for a file that is graded as `phase`."""
    with ExitStack() as guards:
        guards.enter_context(no_forward())  # imports torch, which must not count against the file's time
        guards.enter_context(answers_hidden(phase))
        guards.enter_context(no_network())
        late = f"takes more than {seconds:g} s to import: put work under `if __name__ == '__main__':`"
        guards.enter_context(time_limit(seconds, late))
        yield
