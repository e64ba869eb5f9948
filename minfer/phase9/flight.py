"""Flight: a step whose tokens are still on their way to the host while the next one is launched."""

from dataclasses import dataclass

import torch

from minfer.core.batch import ForwardBatch
from minfer.core.sampling import needs_history
from minfer.core.upload import upload
from minfer.phase8 import Step
from minfer.phase9.copy_stream import Arrival, CopyStream


@dataclass
class Flight(Step):
    """From `depart` to `arrive` its tokens are known to the device only: there the next step takes them."""

    arrival: Arrival | None = None

    def depart(self, copies: CopyStream) -> None:
        """The step is launched: send for its tokens."""
        if self.error is None:
            self.arrival = copies.to_host(self.token_ids)
            for sequence in self.drawing:
                sequence.num_pending += 1

    def feed(self, batch: ForwardBatch) -> None:
        """Put the pending tokens into the batch of the next step, each where its sequence's last token belongs."""
        row_of = {sequence.id: row for row, sequence in enumerate(self.drawing)}
        fed = [(place, row_of[one.id]) for place, one in enumerate(batch.sequences) if one.num_pending]
        if fed:
            places, rows = upload(list(zip(*fed, strict=True)), batch.input_ids.device)
            tokens = self.token_ids.index_select(0, rows).clamp_(min=0)  # INVALID is no token: told when it is read
            batch.input_ids.index_copy_(0, batch.rows.index_select(0, places), tokens)

    def arrive(self) -> None:
        """Wait for the tokens; those drawn for requests that have ended since the launch are thrown away."""
        if self.arrival is None:
            return
        token_ids = self.arrival.wait()
        for sequence in self.drawing:
            sequence.num_pending -= 1
        rows = [row for row, sequence in enumerate(self.drawing) if not sequence.finished]
        self.drawing = [self.drawing[row] for row in rows]
        self.token_ids = token_ids[torch.tensor(rows, dtype=torch.int64)]

    @property
    def is_wanted(self) -> bool:
        """Whether any of its requests goes on."""
        return not all(sequence.finished for sequence in self.scheduled)

    def obstacle(self) -> str:
        """Why the next step cannot be launched before this one's tokens are read; empty: it can."""
        if self.error is not None:
            return "failure"
        going_on = [sequence.params for sequence in self.drawing if not sequence.finished]
        if any(needs_history(params) for params in going_on):
            return "penalties"
        return "logprobs" if any(params.logprobs is not None for params in going_on) else ""
