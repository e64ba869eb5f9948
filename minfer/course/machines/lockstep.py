"""Lockstep: the ranks of one engine as threads of this process, that must say the same things in the same order.

    engine_cls.load(folder, tensor_parallel=2, ranks=Lockstep())

Every call is written down with its rank and its place in the code. Ranks that meet in different operations, that all
wait for each other, or of which one does not come at all, fail with what each of them was at: where processes would
hang, or go on with other numbers.
"""

import sys
import threading
import traceback
from collections import defaultdict, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from minfer.core.group import Group, RankError, World

PATIENCE = 30.0
"""Seconds: within which the ranks of a tiny model meet, whatever else the machine does. Where none can come any more
nobody waits so long."""

OWN_FILES = ("lockstep.py", "group.py")


@dataclass(frozen=True)
class Call:
    """One rank's part in an operation."""

    rank: int
    operation: str
    shape: tuple[int, ...]
    site: str

    @property
    def what(self) -> tuple[str, tuple[int, ...]]:
        """That in which the ranks must agree."""
        return self.operation, self.shape

    def __str__(self) -> str:
        return f"rank {self.rank} in {self.operation} of {self.shape} at {self.site}"


class Lockstep(World):
    """All ranks' threads. `calls` are what they said, in no particular order between ranks."""

    def __init__(self) -> None:
        self.changed = threading.Condition()
        self.calls: list[Call] = []
        self.threads: list[threading.Thread] = []
        self.failed = ""
        self.ended = False
        self.meetings: dict[tuple[tuple[int, ...], int], Meeting] = {}
        self.made: dict[tuple[int, tuple[int, ...]], int] = defaultdict(int)
        self.running = 1  # ranks that may still say something
        self.waiting: dict[threading.Thread, tuple[Call, Callable[[], bool]]] = {}  # of them, and for what
        self.letters: dict[tuple[int, int], deque[Tensor]] = defaultdict(deque)

    def start(self, size: int, work: Callable[[int], None]) -> None:
        """As `World`."""

        def run(rank: int) -> None:
            try:
                work(rank)
            except RankError as error:
                self.fail("" if self.ended else str(error))
            except BaseException:
                self.fail(f"rank {rank} failed:\n{traceback.format_exc()}")
            finally:
                self.leave()

        self.running += size - 1
        for rank in range(1, size):
            self.threads.append(threading.Thread(target=run, args=(rank,), daemon=True, name=f"rank {rank}"))
            self.threads[-1].start()

    def group(self, rank: int, members: Sequence[int]) -> "LockstepGroup":
        """As `World`. The n-th group that a rank makes of some members is that of the others' n-th."""
        key = tuple(members)
        with self.changed:
            number = self.made[rank, key]
            self.made[rank, key] += 1
            meeting = self.meetings.setdefault((key, number), Meeting(self, key))
        return LockstepGroup(meeting, rank)

    def fail(self, said: str) -> None:
        """The first failure is what all are told."""
        with self.changed:
            self.failed = self.failed or said
            self.changed.notify_all()

    def leave(self) -> None:
        """A rank's thread has done its work."""
        with self.changed:
            self.running -= 1
            self.changed.notify_all()

    def failure(self) -> str:
        """As `World`."""
        return self.failed

    def end(self) -> None:
        """As `World`."""
        with self.changed:
            self.ended = True
            self.changed.notify_all()
        for thread in self.threads:
            if thread is not threading.current_thread():
                thread.join(PATIENCE)

    def wait(self, call: Call, until: Callable[[], bool], patience: float | None, late: Callable[[], str]) -> None:
        """Until that is true; `changed` is held. Raises `RankError` if a rank failed, or none comes, or none can."""
        self.waiting[threading.current_thread()] = call, until
        self.changed.wait_for(lambda: until() or self.failed or self.ended or self.stuck(), patience)
        why = "" if until() else self.failed or ("the ranks have ended" if self.ended else self.stuck() or late())
        del self.waiting[threading.current_thread()]
        if why and not self.ended:
            self.failed = why
            self.changed.notify_all()
        if why:
            raise RankError(why)

    def stuck(self) -> str:
        """What they are at, if all that run wait, and for nothing that is there; else empty."""
        calls, awaited = zip(*self.waiting.values(), strict=True)
        if len(calls) < self.running or any(until() for until in awaited):
            return ""
        return f"{'; '.join(sorted(map(str, calls)))}: all wait, and for each other"


class Meeting:
    """Where the ranks of one group come together, for one operation after another."""

    def __init__(self, world: Lockstep, members: tuple[int, ...]) -> None:
        self.world, self.members = world, members
        self.said: dict[int, list[Call]] = {rank: [] for rank in members}
        self.brought: dict[int, dict[int, Tensor]] = defaultdict(dict)

    def exchange(self, call: Call, x: Tensor, patience: float | None) -> list[Tensor]:
        """What each rank brings to this operation, in the order of ranks."""
        with self.world.changed:
            number = len(self.said[call.rank])
            self.said[call.rank].append(call)
            self.world.calls.append(call)
            self.brought[number][call.rank] = x.detach().clone()
            self.world.changed.notify_all()
            brought = self.brought[number]
            self.world.wait(call, lambda: len(brought) == len(self.members), patience, lambda: self.late(number))
            calls = [self.said[rank][number] for rank in self.members]
            if len({one.what for one in calls}) > 1:
                self.world.failed = self.world.failed or "the ranks disagree: " + "; ".join(map(str, calls))
                self.world.changed.notify_all()
                raise RankError(self.world.failed)
            self.brought.pop(number - 1, None)  # all have come here, so all have taken what was before
            return [brought[rank] for rank in self.members]

    def late(self, number: int) -> str:
        """Who is here, and what the others did last."""
        here = [str(calls[number]) for calls in self.said.values() if len(calls) > number]
        absent = [rank for rank in self.members if len(self.said[rank]) <= number]
        last = [str(next((c for c in reversed(self.world.calls) if c.rank == rank), f"rank {rank}")) for rank in absent]
        return f"waited {PATIENCE:g} s: {'; '.join(here)}; missing, last seen: {'; '.join(last)}"


class LockstepGroup(Group):
    """One rank's end of a meeting. Rank 0's broadcasts are waited for without limit: they are how steps begin."""

    def __init__(self, meeting: Meeting, world_rank: int) -> None:
        self.meeting, self.world_rank = meeting, world_rank
        self.rank, self.size = meeting.members.index(world_rank), len(meeting.members)

    def call(self, operation: str, x: Tensor) -> Call:
        """What this rank is about to do, and where."""
        return Call(self.world_rank, operation, tuple(x.shape), site())

    def reduced(self, x: Tensor) -> Tensor:
        """As `Group`."""
        return x.copy_(torch.stack(self.meeting.exchange(self.call("all_reduce", x), x, PATIENCE)).sum(0))

    def gathered(self, x: Tensor, into: Tensor) -> Tensor:
        """As `Group`."""
        return into.copy_(torch.stack(self.meeting.exchange(self.call("all_gather", x), x, PATIENCE)))

    def spread(self, x: Tensor, source: int) -> Tensor:
        """As `Group`."""
        patience = PATIENCE if self.rank == source else None
        return x.copy_(self.meeting.exchange(self.call(f"broadcast from {source}", x), x, patience)[source])

    def sent(self, x: Tensor, to: int) -> None:
        """As `Group`."""
        world = self.meeting.world
        with world.changed:
            world.calls.append(self.call(f"send to {to}", x))
            world.letters[self.world_rank, self.meeting.members[to]].append(x.detach().clone())
            world.changed.notify_all()

    def received(self, x: Tensor, source: int) -> Tensor:
        """As `Group`."""
        world, call = self.meeting.world, self.call(f"receive from {source}", x)
        with world.changed:
            world.calls.append(call)
            letters = world.letters[self.meeting.members[source], self.world_rank]
            late = f"waited {PATIENCE:g} s: {call}; nothing was sent"
            world.wait(call, lambda: len(letters) > 0, PATIENCE, lambda: late)
            letter = letters.popleft()
        if letter.shape != x.shape:
            raise RankError(f"{call}: what was sent has shape {tuple(letter.shape)}")
        return x.copy_(letter)

    def leave(self) -> None:
        """As `Group`."""


def site() -> str:
    """The file and line that called a group."""
    frame = sys._getframe(1)
    while frame.f_back is not None and Path(frame.f_code.co_filename).name in OWN_FILES:
        frame = frame.f_back
    return f"{Path(frame.f_code.co_filename).name}:{frame.f_lineno}"
