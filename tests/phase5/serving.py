"""Serving: requests on an engine of phase 5, a step at a time, with its books checked after each.

What these tests ask of an engine, beside `generate` and `stream`; nothing else of its insides is looked at:

    submit(prompt, params) -> Sequence    queued, and returned at once
    step() -> [Sequence]                  those that got a token, or failed; [] when there is nothing to do
    abort(request_id) -> bool             False: not known, or finished
    release(sequence)                     harmless if it holds nothing
    kv_usage()                            (held, allocated), in slots for one token
    debug_state() -> dict                 plain JSON values:
        num_blocks, block_size            of the pool
        free, used                        blocks that nobody holds, and the others
        references                        for each block, how many requests hold it
        tables                            request id -> its blocks in the order of its tokens; only of who holds any
        running, waiting                  request ids, each in order; both together: all that are known, unfinished
        step                              of the last step: [{"id": request, "tokens": how many it computed}, …]
        preemptions, shared_tokens        how many there were since the engine was made
        kv                                {"held", "allocated", "unused"} as `kv_usage`; shared blocks count once
        kv_if_contiguous                  the same, had each running request reserved its longest possible length
    options                               block_size, num_blocks, max_batch, token_budget, chunk_size, share_prefixes

Any allocator, any order of prefill and decode, and any way of preemption will do.
"""

from collections import Counter

from minfer.course.lab.recording import Run

SLOW = 2000
"""More steps than any trace here needs: an engine that takes as many makes no progress."""


class Serving:
    """An engine, the requests that it was given, and the code of the mistake that a wrong book is put down to."""

    def __init__(self, engine_cls, lab, model, code, did, hint="", tokenizer=None, **options):
        self.lab, self.code, self.did, self.hint = lab, code, did, hint
        self.engine = lab.engine(engine_cls, model, tokenizer, **options)
        self.model, self.sequences, self.steps = model, [], 0

    def submit(self, prompt, params):
        sequence = self.engine.submit(prompt, params)
        self.sequences.append(sequence)
        return sequence

    @property
    def state(self):
        return self.engine.debug_state()

    @property
    def unfinished(self):
        return [sequence for sequence in self.sequences if not sequence.finished]

    def step(self, check=True):
        """One step of the engine; then its books."""
        __tracebackhide__ = True
        advanced = self.engine.step()
        self.steps += 1
        if check:
            self.check()
        return advanced

    def until(self, reached, check=True):
        """Step until `reached()` is true."""
        __tracebackhide__ = True
        start = self.steps
        while not reached():
            self.equal(self.steps - start < SLOW, True, f"took {SLOW} steps without an end: does the oldest advance?")
            self.step(check)

    def drain(self, check=True):
        """Step until all are finished; then nothing may be held."""
        __tracebackhide__ = True
        self.until(lambda: not self.unfinished, check)
        self.empty()

    def empty(self):
        """Fail unless all blocks are free."""
        __tracebackhide__ = True
        state = self.state
        self.equal(state["free"], state["num_blocks"], "counted the free blocks when no request was left")
        self.equal(state["tables"], {}, "looked for block tables when no request was left")

    def check(self):
        """Fail unless every block is free or used, by as many as the references say, and every request is known."""
        __tracebackhide__ = True
        state = self.state
        at = f"looked at debug_state() after step {self.steps}"
        held = Counter(block for table in state["tables"].values() for block in table)
        counted = [held[block] for block in range(state["num_blocks"])]
        self.equal(state["references"], counted, f"{at}: references, beside the block tables")
        self.equal(state["used"], len(held), f"{at}: used, beside the block tables")
        self.equal(state["free"] + state["used"], state["num_blocks"], f"{at}: free + used")
        twice = {owner: table for owner, table in state["tables"].items() if len(set(table)) < len(table)}
        self.equal(twice, {}, f"{at}: requests that hold a block twice")
        known, unfinished = [*state["running"], *state["waiting"]], [sequence.id for sequence in self.unfinished]
        self.equal(sorted(known), sorted(unfinished), f"{at}: running and waiting, beside the unfinished requests")
        for sequence in self.unfinished:
            if sequence.id in state["tables"]:
                room = len(state["tables"][sequence.id]) * state["block_size"]
                self.equal(room >= sequence.num_cached, True, f"{at}: room for the {sequence.num_cached} cached tokens")

    def equal(self, got, want, what):
        __tracebackhide__ = True
        self.lab.equal(got, want, self.code, f"{self.did}; {what}", self.hint)

    def run(self, sequence):
        """What came of a finished request."""
        rows = self.engine.record.rows(sequence, self.engine.config.vocab_size)
        return Run(sequence.completion(), rows)

    def right(self):
        """Fail unless every answer is complete, and every step's logits are the oracle's; greedy tokens too."""
        __tracebackhide__ = True
        for number, sequence in enumerate(self.sequences):
            run, asked = self.run(sequence), sequence.params.max_tokens
            did = f"{self.did}, at request {number} with a prompt of {len(run.prompt_ids)}"
            follow = self.lab.follows if sequence.params.is_greedy else self.lab.computes
            follow(run, self.model, self.code, did, self.hint)
            if asked is not None and sequence.params.ignore_eos:
                self.lab.equal(len(run.token_ids), asked, self.code, f"{did}; counted the tokens", self.hint)

    def serve(self, prompts, params):
        """Submit all, run to the end, look at everything; `params` for all, or one each."""
        __tracebackhide__ = True
        each = params if isinstance(params, list) else [params] * len(prompts)
        for prompt, own in zip(prompts, each, strict=True):
            self.submit(prompt, own)
        self.drain()
        self.right()
        return self


def alone(engine_cls, lab, model, prompt, params):
    """What the same engine answers to one request that has it for itself."""
    (run,) = lab.run(lab.engine(engine_cls, model, share_prefixes=False), [prompt], params)
    return run
