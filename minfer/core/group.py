"""Group: what the ranks of a model that is dealt to several say to each other, however they are connected.

World: ranks in one process, a thread each, that tests put in the place of processes.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence

from torch import Tensor


class RankError(RuntimeError):
    """Another rank has failed, died, hung, or is at another step than this one."""


class Group(ABC):
    """Some ranks that call the same operations in the same order. Tensors are contiguous, and of one shape on all.

    While it is `alone`, a rank only pretends: for a rehearsal, whose results nobody uses. Empty tensors go nowhere.
    """

    rank: int
    """Which of the group this one is."""
    size: int
    alone = False
    calls = 0
    nbytes = 0
    """Of the tensors of all `calls`: what each rank gives to a sum, a broadcast or another rank, what it gathers."""

    def all_reduce(self, x: Tensor) -> Tensor:
        """The sum over the ranks, into `x`."""
        return self.reduced(x) if self._says(x.nbytes) else x

    def all_gather(self, x: Tensor) -> Tensor:
        """The ranks' `x` of shape `(*shape)`, in the order of ranks: `(size, *shape)`."""
        into = x.new_zeros(self.size, *x.shape)
        return self.gathered(x, into) if self._says(into.nbytes) else into

    def broadcast(self, x: Tensor, source: int = 0) -> Tensor:
        """The `x` of rank `source`, into `x`."""
        return self.spread(x, source) if self._says(x.nbytes) else x

    def send(self, x: Tensor, to: int) -> None:
        """Give `x` to one rank, which receives it."""
        if self._says(x.nbytes):
            self.sent(x, to)

    def receive(self, x: Tensor, source: int) -> Tensor:
        """What rank `source` sends, into `x`."""
        return self.received(x, source) if self._says(x.nbytes) else x.zero_()

    def _says(self, nbytes: int) -> bool:
        """Whether an operation on so many bytes takes place; if so, it counts."""
        if self.alone or not nbytes:
            return False
        self.calls += 1
        self.nbytes += nbytes
        return True

    # ---- how it is done ------------------------------------------------------------------------------------------

    @abstractmethod
    def reduced(self, x: Tensor) -> Tensor:
        """`all_reduce` of something."""

    @abstractmethod
    def gathered(self, x: Tensor, into: Tensor) -> Tensor:
        """`all_gather` of something, into `(size, *shape)`."""

    @abstractmethod
    def spread(self, x: Tensor, source: int) -> Tensor:
        """`broadcast` of something."""

    @abstractmethod
    def sent(self, x: Tensor, to: int) -> None:
        """`send` of something."""

    @abstractmethod
    def received(self, x: Tensor, source: int) -> Tensor:
        """`receive` of something."""

    @abstractmethod
    def leave(self) -> None:
        """There will be no more operations."""


class World(ABC):
    """Ranks in this process. Rank 0 is whoever starts the others."""

    @abstractmethod
    def start(self, size: int, work: Callable[[int], None]) -> None:
        """Let `work(rank)` run for every rank from 1 to `size` - 1, in a thread of its own, until it returns."""

    @abstractmethod
    def group(self, rank: int, members: Sequence[int]) -> Group:
        """What rank `rank` has of a group of these ranks."""

    @abstractmethod
    def failure(self) -> str:
        """What the first rank that failed died of; empty if none has."""

    @abstractmethod
    def end(self) -> None:
        """Leave no thread behind: what is waited for in a group will not come."""
