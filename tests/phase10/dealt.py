"""Dealt: an engine on several ranks, all of them threads of this process.

What these tests ask of an engine of phase 10, beside what `tests/phase5/serving.py` says:

    load(folder, tensor_parallel=T, pipeline_parallel=P, ranks=world)
                       with a `minfer.core.group.World`: `world.start(T · P, work)` runs the others, each of which loads
                       with the same class; what ranks say to each other goes through `world.group(rank, members)`
    close()            ends the other ranks
    ranks.bytes_read   of the files, by rank; once it is loaded

How a layer is dealt, which operations are used, and who gives what to whom beside that, is free.
"""

from collections import Counter

from minfer.course.machines.lockstep import Lockstep

LAYOUTS = ((2, 1), (1, 2), (2, 2), (3, 1))  # tensor, pipeline


class Dealt:
    """An engine and its world."""

    def __init__(self, engine_cls, lab, family, tensor=1, pipeline=1, **options):
        self.lab, self.model = lab, lab.model(family)
        self.world = Lockstep()
        self.did = f"{family}, tensor_parallel={tensor}, pipeline_parallel={pipeline}"
        options = {"max_batch": 4, "graph_batch": 0, "num_blocks": 30, "block_size": 4, **options}
        dealt = {"tensor_parallel": tensor, "pipeline_parallel": pipeline, "ranks": self.world}
        self.engine = lab.load(engine_cls, self.model.save(lab.new_folder()), **dealt, **options)

    def __enter__(self):
        return self

    def __exit__(self, *error):
        self.engine.close()

    def run(self, lengths, steps=4, **params):
        """Answers to prompts of these lengths, together."""
        prompts = [self.lab.prompt(self.model, length) for length in lengths]
        return self.lab.run(self.engine, prompts, self.lab.params(steps, **params))

    def right(self, code, hint, lengths=(5, 1, 9), steps=4, did="", **params):
        """Fail unless every step's logits are the oracle's."""
        __tracebackhide__ = True
        for run in self.run(lengths, steps, **params):
            self.lab.computes(run, self.model, code, self.did + did, hint)

    def counts(self):
        """How often each rank did each operation, so far."""
        return Counter((call.rank, call.operation) for call in self.world.calls)


def right_in(engine_cls, lab, families, layouts, code, hint, **options):
    """Fail unless the engine is right for all these families, dealt in all these ways."""
    __tracebackhide__ = True

    def check(name):
        __tracebackhide__ = True
        family, _, layout = name.partition(" ")
        tensor, pipeline = map(int, layout.split("x"))
        with Dealt(engine_cls, lab, family, tensor, pipeline, **options) as dealt:
            dealt.right(code, hint)

    lab.each([f"{family} {tensor}x{pipeline}" for family in families for tensor, pipeline in layouts], check)
