"""Phase 10: replicas: one queue, two engines, one of them in a process of its own.

What these tests ask, beside what `tests/phase5/serving.py` says:

    load(folder, replicas=2)       one engine for its user; `close()` ends the other
    debug_state()["replicas"]      a list of the others' own `debug_state()`
    kv_usage()                     of all together
"""

import json
from contextlib import contextmanager

FEW = {"replicas": 2, "max_batch": 4, "graph_batch": 0, "num_blocks": 700, "block_size": 4, "rank_timeout": 60.0}
CONTEXT, LONG = 1000, 900  # tokens: seconds of work, so that no request ends while others are still handed over


@contextmanager
def two(engine_cls, lab):
    """A model, and an engine of two replicas of it with a long context, at whose end no process is left."""
    model = lab.model("llama")
    folder = model.save(lab.new_folder())
    facts = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**facts, "max_position_embeddings": CONTEXT}))
    engine = lab.load(engine_cls, folder, **FEW)
    try:
        yield model, engine
    finally:
        engine.close()


def running(engine):
    """How many requests each replica has in its steps."""
    state = engine.debug_state()
    return [len(one["running"]) for one in (state, *state["replicas"])]


def share_out(engine, lab):
    """Six requests, longer than all that is waited for, and the steps until each replica has read of its three."""
    requests = [engine.submit([5, 6, 7], lab.params(LONG)) for _ in range(6)]
    for _ in range(20):  # a replica reads of its requests when its step has ended
        engine.step()
        if running(engine) == [3, 3]:
            break
    return requests


def asked(lab, model):
    """Prompts and parameters of ten requests, every other one sampled."""
    prompts = [lab.prompt(model, 3 + number % 5) for number in range(10)]
    return prompts, [lab.params(4 + number % 3, temperature=1.5 * (number % 2), seed=number) for number in range(10)]


def test_P10_13_one_queue_is_dealt_evenly_and_all_answer_alike(engine_cls, lab):
    code, hint = "P10-13", "a request goes to whoever has the fewest, as it is: with the seed that its draws depend on"
    with two(engine_cls, lab) as (model, engine):
        did = "loaded llama with replicas=2, max_batch=4"
        prompts, params = asked(lab, model)
        alone = lab.engine(engine_cls, model).generate(prompts, params)
        together = engine.generate(prompts, params)
        for number, (got, want) in enumerate(zip(together, alone, strict=True)):
            lab.equal(got.token_ids, want.token_ids, code, f"{did}; compared request {number} with one engine's", hint)
        share_out(engine, lab)
        lab.equal(running(engine), [3, 3], code, f"{did}; asked who has how many of 6 requests", hint)


def test_P10_14_an_abort_reaches_whoever_has_the_request(engine_cls, lab):
    code, hint = "P10-14", "nobody reads the answer: whoever computes it has to be told, and frees its blocks"
    with two(engine_cls, lab) as (_, engine):
        did = "loaded llama with replicas=2; aborted 6 requests of 6"
        requests = share_out(engine, lab)
        aborted = [engine.abort(one.id) for one in requests]
        lab.equal(aborted, [True] * 6, code, f"{did}; looked what abort returned", hint)
        lab.equal([one.finished for one in requests], [True] * 6, code, f"{did}; looked whether they have ended", hint)
        lab.equal(running(engine), [0, 0], code, f"{did}; asked who still computes", hint)
        lab.equal(tuple(engine.kv_usage()), (0, 0), code, f"{did}; asked what is held", hint)
