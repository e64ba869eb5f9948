"""Ranks: one rank's view of the others: its place, its groups, and the protocol of a step.

    rank 0      announce -> forward -> the last stage's logits       it alone schedules and samples
    others      next_step -> forward, and give on                    they compute what they are told

Invariant: all ranks run the same steps in the same order. A step has a number, and another one than expected is an
error; whatever goes wrong within a step on rank 0 ends all ranks, since the others wait somewhere inside it.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

import torch
from torch import Tensor

from minfer.core.device import Device
from minfer.core.group import Group, RankError
from minfer.phase10.shard_plan import Place, ShardPlan
from minfer.phase10.step_message import Kind, StepMessage, header_length


class Others(ABC):
    """Those who run the other ranks, as rank 0 sees them."""

    @abstractmethod
    def loaded(self) -> None:
        """Wait until every rank has its weights. Raises `RankError` if one has failed."""

    @abstractmethod
    def blame(self, error: RankError) -> RankError:
        """An error that says which rank is to blame and what it said; `error` is how it was noticed here."""

    @abstractmethod
    def end(self) -> None:
        """Leave none behind; idempotent."""


class Ranks:
    """The world as one rank sees it: `device` is its own, `local` ranks are on this machine.

    `world` and `tensor` are the groups of all ranks and of this stage's; `host` is one of all for tensors on the CPU,
    on which a rank waits for its next step, for as long as it takes. `say` tells rank 0 what this one has done.
    """

    def __init__(
        self,
        place: Place,
        device: Device,
        groups: tuple[Group, Group, Group],
        local: int,
        others: Others | None = None,
        say: Callable[[str], None] = lambda what: None,
    ) -> None:
        self.place, self.device, self.local, self.others, self.say = place, device, local, others, say
        self.groups = groups
        self.world, self.tensor, self.host = groups
        self.plan: ShardPlan | None = None  # once the model is dealt
        self.steps = 0
        self.header = 0  # numbers in it
        self.bytes_read: list[int] = []
        self.ended = ""
        self.in_step = False

    @property
    def nbytes(self) -> int:
        """Of all operations so far, as counted; those within a recorded graph count once, when it is recorded."""
        return sum(group.nbytes for group in self.groups)

    @property
    def decides(self) -> bool:
        """Whether this is rank 0."""
        return self.place.rank == 0

    def begin(self, max_batch: int, bytes_read: int) -> None:
        """This rank's weights are there: wait until all have theirs; from now on steps are announced."""
        self.header = header_length(max_batch)
        self.say("loaded")
        if self.others is not None:
            self.others.loaded()
        self.bytes_read = self.host.all_gather(torch.tensor([bytes_read])).flatten().tolist()

    @contextmanager
    def equal_memory(self) -> Iterator[None]:
        """In here the device says that as much is free as is on the rank with the least, so all plan alike.

        Ranks that share a machine's memory count a share of it each.
        """
        sharing = self.local if self.device.torch_device.type == "cpu" else 1
        free = self.host.all_gather(torch.tensor([self.device.free_memory() // sharing]))
        least = int(free.min())
        self.device.free_memory = lambda: least  # type: ignore[method-assign]
        try:
            yield
        finally:
            del self.device.free_memory

    @contextmanager
    def alone(self) -> Iterator[None]:
        """In here operations between ranks are skipped, and what the others would have sent counts as zero."""
        self.world.alone = self.tensor.alone = True
        try:
            yield
        finally:
            self.world.alone = self.tensor.alone = False

    # ---- a step --------------------------------------------------------------------------------------------------

    @contextmanager
    def step(self) -> Iterator[None]:
        """What is done in here is done on all ranks. An error ends them all. Raises `RankError` if they have ended."""
        if self.ended:
            raise RankError(f"the other ranks have ended: {self.ended}; load the model again")
        self.in_step = True
        try:
            yield
        except RankError as error:
            blamed = self.others.blame(error) if self.others else error
            self.close(str(blamed))
            raise blamed from error
        except BaseException as error:
            self.close(f"rank {self.place.rank} failed within a step: {type(error).__name__}: {error}")
            raise
        finally:
            self.in_step = False

    def announce(self, message: StepMessage) -> None:
        """Tell the others of the step that begins."""
        self.steps += 1
        self.host.broadcast(message.header(self.steps, self.header))
        if message.kind is not Kind.END:
            self.world.broadcast(message.payload)

    def next_step(self, device: torch.device) -> StepMessage:
        """Wait for a step. Raises `RankError` if it is not the one that comes next here."""
        self.steps += 1
        header = self.host.broadcast(torch.zeros(self.header, dtype=torch.int64)).tolist()
        if header[0] != self.steps:
            raise RankError(f"rank {self.place.rank} expected step {self.steps}, and step {header[0]} was announced")
        message = StepMessage.announced(header, device)
        if message.kind is not Kind.END:
            self.world.broadcast(message.payload)
        return message

    def deliver(self, out: Tensor, rows: int, vocabulary: int) -> Tensor:
        """Bring the logits `(rows, vocabulary)` from the last stage, where they are `out`, to rank 0, if it is another.

        Returns them on rank 0, `out` elsewhere.
        """
        place = self.place
        if place.stages == 1 or not rows:
            return out.new_empty(0, vocabulary) if self.decides and not rows else out
        if self.decides:
            return self.world.receive(out.new_empty(rows, vocabulary), source=(place.stages - 1) * place.parts)
        if place.is_last and place.part == 0:
            self.world.send(out.contiguous(), to=0)
        return out

    # ---- the end -------------------------------------------------------------------------------------------------

    def close(self, why: str = "") -> None:
        """End all ranks, if this is rank 0; idempotent. `why`: what has gone wrong, if the others cannot be told.

        Nor can they in the middle of a step, where another thread, at the end of the process, leaves one that hangs.
        """
        if self.ended:
            return
        if self.decides and self.header and not why and not self.in_step:
            with suppress(RankError):
                self.announce(StepMessage.end())
        self.ended = why or "the engine was closed"
        if self.others is not None:
            self.others.end()
        for group in self.groups:
            group.leave()
