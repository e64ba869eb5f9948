"""The same question has the same answer in every phase: logits of every step, for every family and length."""

import torch

from minfer.core.errors import RequestError
from minfer.core.sequence import Completion, FinishReason


class Answers:
    """Graded in every phase, as the class TestContract of its folder."""

    def test_P0_04_the_interface_stays(self, engine_cls, lab):
        model = lab.model()
        engine = lab.engine(engine_cls, model)
        prompt = lab.prompt(model, 3)
        code, hint = (
            "P0-04",
            "generate(prompts, params=None) -> list of Completion, stream(prompt, params=None) -> str …",
        )
        one = engine.generate(prompt)
        lab.equal(type(one), list, code, "generated one prompt, without parameters", hint)
        lab.equal([type(item) for item in one], [Completion], code, "generated one prompt", hint)
        two = engine.generate([prompt, prompt[:2]], lab.params(2))
        lab.equal(len(two), 2, code, "generated a list of two prompts", hint)
        kinds = {type(token_id) for token_id in two[1].token_ids}
        lab.equal(kinds, {int}, code, "looked at the type of each token id", "tensors stay inside the engine")
        speaking = lab.engine(engine_cls, model, lab.tokenizer())
        for pieces in (speaking.stream("5 6"), speaking.stream(prompt=[5, 6], params=lab.params(2))):
            lab.equal({type(piece) for piece in pieces}, {str}, code, "streamed one prompt", hint)
        options = engine_cls.Options(device="cpu", context=lab.sizes.context - 1)
        lab.equal(engine_cls(model.module(), None, options).context, lab.sizes.context - 1, code, "set context", hint)

    def test_P0_20_every_family_at_every_step(self, engine_cls, lab):
        def check(family):
            model = lab.model(family)
            engine = lab.engine(engine_cls, model)
            for length, steps in ((1, lab.sizes.window + 6), (9, 5), (model.context - 3, 3)):
                (run,) = lab.run(engine, lab.prompt(model, length), lab.params(steps))
                did = f"{family}: generated {steps} tokens after a prompt of {length}"
                lab.equal(len(run.token_ids), steps, "P0-20", did)
                lab.follows(run, model, "P0-20", did, "which fact of this family's config is not honoured?")

        lab.each(lab.families, check)

    def test_P0_32_the_same_tokens_in_float32(self, engine_cls, lab):
        code, hint = "P0-32", "caches, masks and tables must not be narrower than the model"
        for family in ("llama", "qwen3", "gpt2"):
            model = lab.model(family)
            prompt = lab.prompt(model, 7, steps=10, margin=1e-2)
            tokens, want = model.oracle.greedy(prompt, 10)
            (run,) = lab.run(lab.engine(engine_cls, model.module(torch.float32)), prompt, lab.params(10))
            did = f"{family} in float32, from a prompt whose best tokens lead by 0.01"
            lab.equal(run.token_ids, tokens, code, did, hint)
            lab.equal(run.logits, want, code, f"{did}; looked at the logits", hint, tolerance=1e-4)

    def test_P0_21_a_full_context_ends_with_length(self, engine_cls, lab):
        code, hint = "P0-21", "prompt and answer together may fill the context, and not one token more"
        model = lab.model("tied")
        for context, length in ((model.context, 2), (model.context, model.context - 1), (20, 13)):
            engine = lab.engine(engine_cls, model, context=context)
            (run,) = lab.run(engine, lab.prompt(model, length), lab.params(max_tokens=None))
            did = f"generated without a limit after {length} tokens in a context of {context}"
            lab.equal(length + len(run.token_ids), context, code, f"{did}; counted prompt and answer", hint)
            lab.equal(run.completion.finish_reason, FinishReason.LENGTH, code, did, hint)
            lab.follows(run, model, code, did, hint)

    def test_P0_22_a_prompt_that_fills_the_context(self, engine_cls, lab):
        code, hint = "P0-22", "what fits is checked before anything runs; max_tokens=0 asks for no room"
        model = lab.model()
        engine = lab.engine(engine_cls, model)
        full = lab.prompt(model, model.context)
        (run,) = lab.run(engine, full, lab.params(0))
        lab.equal(run.token_ids, [], code, "asked for 0 tokens after a prompt of context tokens", hint)
        lab.equal(run.completion.finish_reason, FinishReason.LENGTH, code, "asked for 0 tokens", hint)
        for prompt, wanted in ((full, 1), (full, None), ([*full, full[0]], 0)):
            did = f"asked for {wanted} tokens after {len(prompt)} in a context of {model.context}"
            lab.raises(RequestError, lambda p=prompt, w=wanted: engine.generate(p, lab.params(w)), code, did, hint)
        lab.equal(engine.record.forwarded, [], code, "counted the tokens that were computed for all this", hint)

    def test_P0_27_answers_come_in_the_order_asked(self, engine_cls, lab):
        code, hint = "P0-27", "each request has its own parameters, and its answer its own place"
        model = lab.model("qwen2")
        prompts = [lab.prompt(model, length) for length in (7, 2, 12)]
        hot = lab.params(6, temperature=1.5, seed=5)
        params = [lab.params(3), hot, lab.params(1)]
        runs = lab.run(lab.engine(engine_cls, model), prompts, params)
        lab.equal([run.prompt_ids for run in runs], prompts, code, "generated three prompts", hint)
        lab.equal([len(run.token_ids) for run in runs], [3, 6, 1], code, "gave each its own max_tokens", hint)
        for i in (0, 2):
            lab.follows(runs[i], model, code, f"took greedy prompt {i} of three, the second of which is sampled", hint)
        (alone,) = lab.run(lab.engine(engine_cls, model), prompts[1], hot)
        lab.equal(runs[1].token_ids, alone.token_ids, code, "sampled a prompt alone and among three", hint)

    def test_P0_26_n_samples_stand_in_a_row(self, engine_cls, lab):
        code, hint = "P0-26", "sample i of n has a seed of its own, made from the request's seed and i"
        model = lab.model()
        prompts = [lab.prompt(model, 4), lab.prompt(model, 5)]
        hot = {"temperature": 2.0, "seed": lab.seed}
        runs = lab.run(lab.engine(engine_cls, model), prompts, lab.params(8, n=3, **hot))
        did = "generated two prompts with n=3"
        lab.equal([run.prompt_ids for run in runs], [p for p in prompts for _ in range(3)], code, did, hint)
        lab.equal([run.completion.index for run in runs], [0, 1, 2] * 2, code, did, hint)
        lab.equal(len({tuple(run.token_ids) for run in runs}), 6, code, f"{did}, counted different answers", hint)
        again = lab.run(lab.engine(engine_cls, model), prompts, lab.params(8, **hot))
        firsts = [runs[0].token_ids, runs[3].token_ids]
        lab.equal([run.token_ids for run in again], firsts, code, "compared n=1 with the first of n=3", hint)
