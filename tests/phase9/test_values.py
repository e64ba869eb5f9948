"""Phase 9: draws that depend on what was drawn before, blocks that others share, steps that fail."""

import json
import math

import torch

from minfer.core.errors import MinferError, OptionsError
from minfer.phase1 import Engine as Phase1Engine
from tests.phase9.streams import StreamServing, deep, prompts_of

ASKED = {
    "temperature": {"temperature": 1.4, "seed": 3},
    "penalties": {"repetition_penalty": 1.5, "frequency_penalty": 0.7, "presence_penalty": 0.3},
    "penalties and temperature": {"frequency_penalty": 1.1, "temperature": 0.9, "seed": 5},
    "logit_bias": {"logit_bias": {9: 3.0, 11: 2.5}},
    "min_tokens": {"min_tokens": 6, "ignore_eos": False, "logit_bias": {2: 40.0}},
    "logprobs": {"logprobs": 3},
    "prompt_logprobs": {"prompt_logprobs": 1},
}


def test_P9_13_each_draw_is_what_it_is_alone(engine_cls, lab):
    code, hint = "P9-13", "which draws depend on earlier tokens, on their number, and what of that does the host know?"
    model = lab.model("llama3")
    prompts = prompts_of(lab, model, range(3, 3 + len(ASKED)))
    params = [lab.params(**{"max_tokens": 9, **more}) for more in ASKED.values()]
    want = Phase1Engine(model.module(), None, Phase1Engine.Options(device="cpu")).generate(prompts, params)
    groups = [[number] for number in range(len(ASKED))] + [list(range(len(ASKED)))]
    for group in groups:
        did = "asked for " + ", ".join(list(ASKED)[number] for number in group)
        serving = StreamServing(engine_cls, lab, model, code, did, hint)
        for number in group:
            serving.submit(prompts[number], params[number])
        serving.drain()
        for sequence, number in zip(serving.sequences, group, strict=True):
            name, got = list(ASKED)[number], sequence.completion()
            serving.equal(got.token_ids, want[number].token_ids, f"looked at the tokens, with {name}")
            serving.equal(_numbers(got), _numbers(want[number]), f"looked at the log-probabilities, with {name}")


def _numbers(completion):
    """The ids and rounded log-probabilities of a completion."""
    judged = [*(completion.prompt_logprobs or []), *(completion.logprobs or [])]
    return [one and (one.token_id, round(one.logprob, 6), one.rank) for one in judged]


def test_P9_14_what_overlapped_and_what_did_not(engine_cls, lab):
    code, hint = "P9-14", "a step that waits for the host is right, but slow: count it, and say why"
    model = lab.model()
    for name, more in (("nothing", {}), ("penalties", {"presence_penalty": 0.5}), ("logprobs", {"logprobs": 0})):
        serving = StreamServing(engine_cls, lab, model, code, f"one request of 6 tokens that wants {name}", hint)
        serving.submit(lab.prompt(model, 5), lab.params(6, **more))
        serving.drain()
        usage = serving.engine.overlap_usage()
        json.dumps(usage)
        serving.equal(usage["overlapped"] + sum(usage["alone"].values()), 6, "added up the steps")
        serving.equal(usage["overlapped"], 0 if more else 5, "looked at overlapped")
        if more:
            serving.equal(usage["alone"].get(name, 0) >= 5, True, f"looked at the reasons in alone: {usage['alone']}")


def test_P9_18_blocks_with_tokens_that_nobody_knows_are_not_shared(engine_cls, lab):
    code, hint = "P9-18", "the token that fills a block may be pending: what the block holds is known one step later"
    model = lab.model("mistral")
    for length in (6, 7, 8):
        prompt = lab.prompt(model, length)
        answer, _ = model.oracle.greedy(prompt, 9)
        did = f"a prompt of {length} in blocks of 4, while it is answered others that begin with it"
        serving = StreamServing(engine_cls, lab, model, code, did, hint, share_prefixes=True)
        serving.submit(prompt, lab.params(9))
        for number in range(7):
            serving.step()
            serving.submit([*prompt, *[0] * (1 + number % 3), 9], lab.params(2))
            serving.submit([*prompt, *answer[: number + 2], 9], lab.params(2))
        serving.drain()
        serving.right()
        did = f"a prompt of {length} in blocks of 4, then one that is it and its answer"
        serving = StreamServing(engine_cls, lab, model, code, did, hint, share_prefixes=True)
        serving.serve([prompt], lab.params(9))
        serving.serve([[*prompt, *answer[:8], 5]], lab.params(1))
        shared = serving.state["shared_tokens"]
        serving.equal(shared >= (length + 7) // 4 * 4, True, f"counted {shared} tokens found again")


def test_P9_16_only_the_culprit_fails(engine_cls, lab):
    """One request's logits are NaN from its prompt on: its step has a follower by the time that this is read."""
    code, hint = "P9-16", "undo both steps, the failed one and the one behind it, and run who was in the first alone"
    model, sick = lab.model(), 77
    module = model.module()
    module.embed_tokens.weight.data[sick] = math.nan
    serving = StreamServing(engine_cls, lab, module, code, "one of three requests has NaN for logits", hint)
    serving.model = model
    fed = _watch_tokens(serving.engine)
    healthy = [[5, 6, 7, 8], [9, 10]]
    for prompt in (healthy[0], [5, sick, 6], healthy[1]):
        serving.submit(prompt, lab.params(6, logit_bias={sick: -1e9}))
    serving.may_fail = True
    serving.until(lambda: not serving.unfinished)
    serving.empty()
    culprit = serving.sequences.pop(1)
    serving.equal(type(culprit.error), MinferError, "looked at the error of the culprit")
    serving.equal(culprit.output_ids, [], "looked at its tokens")
    for sequence, prompt in zip(serving.sequences, healthy, strict=True):
        serving.equal(sequence.error, None, "looked for an error of the others")
        want, _ = model.oracle.greedy(prompt, 6)
        serving.equal(sequence.output_ids, want, "looked at the tokens of the others")
    serving.equal(min(fed) >= 0, True, f"looked at the tokens that the model was given: the least is {min(fed)}")
    _all_are_served(serving)


def _watch_tokens(engine):
    """The tokens that the engine's forwards are given from now on."""
    fed, forward = [], engine.forward

    def watching(batch):
        fed.extend(batch.input_ids.flatten().tolist())
        return forward(batch)

    engine.forward = watching
    return fed


def _all_are_served(serving):
    """The engine goes on as if nothing had happened."""
    __tracebackhide__ = True
    serving.sequences.clear()
    serving.engine.record.logits.clear()
    serving.serve([[5, 6, 7], [8, 9]], serving.lab.params(4))


def test_P9_17_a_launch_that_fails_costs_the_step_before_nothing(engine_cls, lab):
    """The model fails once, when it is given the third token of an answer: the second is on its way then."""
    code, hint = "P9-17", "what is in flight is good, and lands; only the step that could not be launched is undone"
    for count in (1, 2):
        model = lab.scripted(3, [9] * 20, fail_at=5)
        serving = StreamServing(engine_cls, lab, model, code, f"{count} requests, whose fourth step fails once", hint)
        serving.may_fail = True
        for _ in range(count):
            serving.submit([5] * 3, lab.params(8))
        serving.drain()
        want = (3, ArithmeticError) if count == 1 else (8, type(None))
        for sequence in serving.sequences:
            got = len(sequence.output_ids), type(sequence.error)
            serving.equal(got, want, "counted the tokens of each, and looked at its error")
        serving.equal(serving.engine.step(), [], "called step() when all were gone")


def test_P9_23_offloaded_layers_give_the_same_answers(engine_cls, lab):
    code, hint = "P9-23", "a layer computes with its own weights, all of them, whatever they are stored as"
    for family in ("qwen2", "qwen3"):
        model = deep(lab, family, 3)
        serving = StreamServing(
            engine_cls, lab, model, code, f"{family}: 3 of 3 layers offloaded", hint, offload_layers=3
        )
        serving.serve(prompts_of(lab, model, (5, 2)), lab.params(4))
    model = deep(lab, layers=4)
    prompts = prompts_of(lab, model, (5, 3))
    for scheme in ("int8", "int4"):
        answers = []
        for count in (0, 4):
            options = {"offload_layers": count, "quantization": scheme, "num_blocks": 20, "block_size": 4}
            if not count:
                options["graph_batch"] = 0
            engine = lab.engine(engine_cls, model.module(torch.float32), **options)
            answers.append([one.token_ids for one in engine.generate(prompts, lab.params(5))])
        lab.equal(answers[1], answers[0], code, f"{scheme}: 4 of 4 layers offloaded, beside none", hint)


def test_P9_24_the_card_holds_two_layers_of_those_offloaded(engine_cls, lab):
    hint = "two buffers for all offloaded layers; what was on the device before is let go"
    model = deep(lab, layers=6)
    serving = StreamServing(engine_cls, lab, model, "P9-24", "6 of 6 layers offloaded", hint, offload_layers=6)
    layer = sum(array.nbytes for name, array in model.weights.items() if ".layers.3." in name)
    host = sum(memory.nbytes() for memory in serving.device.host_memory.values())
    serving.equal(host >= 6 * layer, True, f"looked for the layers' {6 * layer:,} bytes in pinned memory: {host:,}")
    held = {
        one.untyped_storage().data_ptr(): one.untyped_storage().nbytes() for one in serving.engine.model.parameters()
    }
    rest = sum(array.nbytes for name, array in model.weights.items() if ".layers." not in name)
    serving.equal(sum(held.values()) <= rest + 2.2 * layer, True, f"counted {sum(held.values()):,} bytes of the model")
    serving.serve(prompts_of(lab, model, (5,)), lab.params(3))


def test_P9_25_more_layers_than_there_are_cannot_be_offloaded(engine_cls, lab):
    code, hint = "P9-25", "say what was asked for, and what there is"
    model = deep(lab, layers=3)
    for options in ({"offload_layers": -1}, {"offload_layers": 4}, {"offload_layers": 1, "graph_batch": 2}):
        make = lambda options=options: lab.engine(engine_cls, model, num_blocks=20, block_size=4, **options)  # noqa: E731
        said = lab.raises(OptionsError, make, code, f"loaded with {options}", hint)
        lab.check(str(options["offload_layers"]) in said, code, f"loaded with {options}", "the number", said, hint)
    make = lambda: lab.engine(engine_cls, lab.scripted(2, [9] * 9), num_blocks=20, block_size=4, offload_layers=1)  # noqa: E731
    lab.raises(OptionsError, make, code, "offloaded a model whose layers are not known", hint)
