"""Phase 5: requests that begin alike share the blocks of that beginning, and how much memory holds nothing."""

import numpy as np
import torch

from minfer.course.lab.families import family_facts
from minfer.course.lab.tiny import TinyModel
from tests.phase5.serving import Serving


def test_P5_13_shared_blocks_are_never_written(engine_cls, lab):
    code, hint = (
        "P5-13",
        "share whole blocks only, compute one token at least, and write that one where nobody else reads",
    )

    def check(family):
        model = lab.model(family)
        for size, blocks in ((4, 2), (3, 3), (1, 6)):
            prefix = lab.prompt(model, size * blocks)
            did = f"{family}: four requests fork from the first {blocks} full blocks of {size} of one that still runs"
            serving = Serving(engine_cls, lab, model, code, did, hint, block_size=size, num_blocks=80 // size)
            tail = lab.prompt(model, 2)
            serving.submit(prefix + tail, lab.params(12))
            serving.step()
            marked = _mark(lab.caches(model, serving.engine), model.oracle.layers(prefix))
            before = serving.state["shared_tokens"]
            for rest in ([], [], lab.prompt(model, 3), tail + lab.prompt(model, 5)):
                serving.submit(prefix + rest, lab.params(5))
                serving.step()
                _untouched(serving, marked)
            while serving.unfinished:
                serving.step()
                _untouched(serving, marked)
            serving.right()
            serving.empty()
            shared = serving.state["shared_tokens"] - before
            least = 4 * size * (blocks - 1)
            serving.equal(
                shared >= least, True, f"looked whether of 4 × {len(prefix)} tokens {least} were shared at least"
            )

    lab.each(("llama", "gpt2", "mistral"), check)


@torch.inference_mode()
def _mark(caches, layers):
    """Change the prefix's keys and values in the pool by less than any answer shows; where they are, and their bits."""
    wanted = np.concatenate([np.asarray(part).reshape(-1) for layer in layers for part in layer])
    wanted.sort()
    marked = []
    for tensor in caches.tensors:
        flat = tensor.reshape(-1).numpy() if tensor.is_contiguous() else None
        assert flat is not None, "a pool is contiguous"
        after = np.searchsorted(wanted, flat).clip(0, len(wanted) - 1)
        nearest = np.minimum(np.abs(wanted[after] - flat), np.abs(wanted[(after - 1).clip(0)] - flat))
        places = np.flatnonzero(nearest < 1e-10)
        flat[places] += 1e-11
        marked.append((flat, places, flat[places].copy()))
    return marked


def _untouched(serving, marked):
    __tracebackhide__ = True
    places = sum(len(places) for _, places, _ in marked)
    same = sum(int((flat[places] == bits).sum()) for flat, places, bits in marked)
    serving.equal(
        same, places, f"marked the prefix's numbers in the pool, and counted those unchanged in step {serving.steps}"
    )


def long_model(lab, context):
    """A model with a longer context."""
    facts = {**family_facts(lab.sizes)["llama"], "max_position_embeddings": context}
    return TinyModel("long", facts, lab.seed)


def test_P5_19_a_common_prefix_is_computed_once(engine_cls, lab):
    code, hint = (
        "P5-19",
        "look the full blocks of a new prompt up before computing them; keep those of whoever has left",
    )
    model = long_model(lab, 280)
    prefix = lab.prompt(model, 256)
    prompts = [prefix + lab.prompt(model, 1 + i % 4) for i in range(16)]
    counted = {}
    for share in (False, True):
        did = f"16 requests with one prefix of 256 tokens, share_prefixes={share}"
        serving = Serving(engine_cls, lab, model, code, did, hint, block_size=16, num_blocks=300, share_prefixes=share)
        serving.submit(prompts[0], lab.params(2))
        serving.step()
        for prompt in prompts[1:]:
            serving.submit(prompt, lab.params(2))
        serving.drain(check=False)
        counted[share] = sum(serving.engine.record.forwarded)
        for sequence in serving.sequences[:3]:
            lab.follows(serving.run(sequence), model, code, did, hint)
        serving.equal(serving.state["shared_tokens"], 15 * 256 if share else 0, "looked at shared_tokens")
    drop = 1 - counted[True] / counted[False]
    did = f"compared the tokens computed without sharing ({counted[False]:,}) and with it"
    lab.check(drop >= 0.9, code, did, "90% fewer", f"{drop:.0%} fewer ({counted[True]:,})", hint)
    before = sum(serving.engine.record.forwarded)
    serving.serve([prompts[3]], lab.params(2))
    again = sum(serving.engine.record.forwarded) - before
    serving.equal(again < 20, True, f"asked again when all had left: {again} tokens computed")


def test_P5_20_a_block_is_known_by_all_that_precedes_it(engine_cls, lab):
    hint = "keys and values depend on every token before them: what does a block's hash cover, and what is compared?"
    for family in ("llama", "gpt2"):
        model = lab.model(family)
        a, b, c = (lab.prompt(model, 4) for _ in range(3))
        for prompts in (
            [a + b + c, c + b + a, b + b + c, a + a + c],  # the same block after other blocks
            [a + b, a[::-1] + b, b + a, a[2:] + a[:2] + b],  # the same tokens in another order
            [a + b + c, a + c + b, a + b + b + c, a + b],  # alike at first
            [a + a + a, a + a + b, a + a + a + a],
            [c + b, a + c, a + b],  # each block has been in its place before
        ):
            did = f"{family}: prompts of the same blocks in other orders, one after another and together"
            options = {"block_size": 4, "num_blocks": 20}
            serving = Serving(engine_cls, lab, model, "P5-20", did, hint, **options)
            for prompt in prompts:
                serving.serve([[*prompt, 9]], lab.params(2))
            serving.serve([[*prompt, 9] for prompt in prompts], lab.params(3))
    model = lab.model()
    did = "a prompt, then 6 short ones that take all 6 blocks, then the prompt again"
    serving = Serving(engine_cls, lab, model, "P5-20", did, hint, block_size=4, num_blocks=6)
    prompt = lab.prompt(model, 17)
    for prompts in ([prompt], [lab.prompt(model, 1) for _ in range(6)], [prompt], [prompt[:8], prompt[:13]]):
        serving.serve(prompts, lab.params(3))


def test_P5_21_how_much_memory_holds_nothing(engine_cls, lab):
    code, hint = (
        "P5-21",
        "held: cached tokens, a shared block once. Allocated: whole blocks, or the longest possible length",
    )
    model = lab.model()
    did = "blocks of 4, prompts of 5 and 9 tokens that get up to 10 and 5 more, then one of 10 that shares 8"
    serving = Serving(engine_cls, lab, model, code, did, hint, block_size=4, num_blocks=20, share_prefixes=True)
    _usage(serving)
    first = serving.submit(lab.prompt(model, 5), lab.params(10))
    second = serving.submit(lab.prompt(model, 9), lab.params(5))
    for count in (1, 2):
        serving.until(lambda n=count: len(second.output_ids) == n)
        _usage(serving, first, second)
    third = serving.submit(second.prompt_ids + lab.prompt(model, 1), lab.params(8))
    serving.until(lambda: third.output_ids)
    _usage(serving, first, second, third, shared_blocks=2)
    serving.until(lambda: second.finished)
    _usage(serving, first, third)
    serving.drain()
    _usage(serving)
    serving.right()
    did = "32 requests of 16 to 47 tokens, blocks of 16, share_prefixes=False"
    model = long_model(lab, 280)
    options = {"block_size": 16, "num_blocks": 300, "max_batch": 32, "token_budget": 2000, "share_prefixes": False}
    serving = Serving(engine_cls, lab, model, code, did, hint, **options)
    for i in range(32):
        serving.submit(lab.prompt(model, 16 + i), lab.params(40))
    serving.until(lambda: all(sequence.output_ids for sequence in serving.sequences), check=False)
    _usage(serving, *serving.sequences)


def _usage(serving, *running, shared_blocks=0):
    """Fail unless the figures are those of these running requests, two of which share so many blocks."""
    __tracebackhide__ = True
    state, size = serving.state, serving.state["block_size"]
    tokens = [sequence.num_cached for sequence in running]
    blocks = sum(-(-count // size) for count in tokens) - shared_blocks
    figures = {
        "kv": (sum(tokens) - shared_blocks * size, blocks * size),
        "kv_if_contiguous": (sum(tokens), sum(sequence.max_length for sequence in running)),
    }
    for name, (held, allocated) in figures.items():
        want = {"held": held, "allocated": allocated, "unused": 1 - held / allocated if allocated else 0.0}
        got = {key: state[name][key] for key in want}
        serving.equal(got, want, f"looked at debug_state()[{name!r}] after step {serving.steps}")
    serving.equal(tuple(serving.engine.kv_usage()), figures["kv"], "looked at kv_usage()")
