"""Data parallelism: an engine whose queue is answered by itself and its replicas, the least loaded one first."""

from contextlib import suppress
from typing import Any

from minfer.core.group import RankError
from minfer.core.sequence import FinishReason, Sequence
from minfer.phase9 import Engine as PreviousEngine
from minfer.phase10.replica_worker import raise_if_lost, state_of, usage_of
from minfer.phase10.replicas import Replicas


class ReplicatedEngine(PreviousEngine):
    """Deals requests out, and takes in what comes back. Without `replicas` it is the engine of the phase before.

    A replica that dies ends all, as a rank does: what is unfinished anywhere fails with its error.
    """

    replicas: Replicas | None = None

    def dispatch(self) -> None:
        """Deal the queue out, as long as anybody has room for another request in a step."""
        if self.replicas is None:
            super().dispatch()
            return
        while self.inbox:
            own = len(self.scheduler.running) + len(self.scheduler.waiting)
            replica = self.replicas.least_loaded(own)
            if (own if replica is None else len(replica.given)) >= self.options.max_batch:
                return
            sequence = self.inbox.popleft()
            if replica is None:
                self.scheduler.add(sequence)
            else:
                replica.take(sequence, self.reader.eos_token_ids, self.device.clock())

    def step(self) -> list[Sequence]:
        """As before, and what the others have done meanwhile; waits for them if there is nothing to do here."""
        if self.replicas is None:
            return super().step()
        with self.stepping:
            if self.replicas.ended:
                return self._fail_all(
                    RankError(f"the replicas have ended: {self.replicas.ended}; load the model again")
                )
            try:
                advanced = super().step()
                raise_if_lost(advanced)
                idle = not (advanced or self.launched or self.scheduler.running or self.scheduler.waiting)
                return advanced + self.replicas.advance(self.device.clock, block=idle)
            except RankError as error:
                self.replicas.end(str(error))
                return self._fail_all(error)

    def _fail_all(self, error: RankError) -> list[Sequence]:
        """Nobody answers any more: end every request that is not finished."""
        assert self.replicas is not None
        elsewhere = [given.sequence for replica in self.replicas.all for given in replica.given.values()]
        failed = [*self.inbox, *self.scheduler.running, *self.scheduler.waiting, *elsewhere]
        self.inbox.clear()
        for replica in self.replicas.all:
            replica.given.clear()
        for sequence in failed:
            sequence.error = error
            sequence.finish(FinishReason.ABORT, self.device.clock())
            self.release(sequence)
        return failed

    def abort(self, request_id: int) -> bool:
        """As before, wherever the request is."""
        if self.replicas is not None and not self.in_step:
            with self.stepping, suppress(RankError):  # the next step tells
                self.dispatch()
                found = [one for one in self.inbox if one.id == request_id]
                found += [one for replica in self.replicas.all if (one := replica.take_back(request_id))]
                for sequence in found:
                    if sequence in self.inbox:
                        self.inbox.remove(sequence)
                    sequence.finish(FinishReason.ABORT, self.device.clock())
                    return True
        return super().abort(request_id)

    def debug_state(self) -> dict[str, Any]:
        """As before, of this process; `replicas` has the same of the others, at the ends of their steps."""
        state = super().debug_state()
        if self.replicas is not None:
            state["replicas"] = [replica.ask(state_of) for replica in self.replicas.all]
        return state

    def kv_usage(self) -> Any:
        """As before, of all together."""
        usage = super().kv_usage()
        if self.replicas is None:
            return usage
        each = [usage, *(replica.ask(usage_of) for replica in self.replicas.all)]
        return usage._replace(**{name: sum(getattr(one, name) for one in each) for name in usage._fields})
