"""Nothing leaks: not from one engine to another, from one request to the next, or out of a stream that was closed."""

from itertools import zip_longest


class Isolation:
    """Graded in every phase, as the class TestContract of its folder."""

    def test_P0_06_two_engines_do_not_share_state(self, engine_cls, lab):
        code, hint = "P0-06", "what belongs to a request or an engine must not live in the class or the module"
        models = [lab.model("llama"), lab.model("mistral")]
        engines = [lab.engine(engine_cls, model) for model in models]
        sequences = [
            engine.sequences([lab.prompt(model, length)], lab.params(9))
            for engine, model, length in zip(engines, models, (6, 11), strict=True)
        ]
        for _ in zip_longest(*(engine.run(own) for engine, own in zip(engines, sequences, strict=True))):
            pass
        for engine, model, (sequence,) in zip(engines, models, sequences, strict=True):
            got = engine.record.rows(sequence, model.config.vocab_size)
            want = model.oracle.logits(sequence.token_ids)[sequence.num_prompt - 1 : -1]
            did = f"ran two engines in turn, a step each; looked at the logits of the {model.name} one"
            lab.equal(got, want, code, did, hint)

    def test_P0_07_other_models_of_other_sizes(self, engine_cls, lab):
        code, hint = "P0-07", "sizes, weights and end tokens come from the model that the engine is given"
        for seed in (lab.seed, lab.seed + 1, lab.seed + 2):
            other = type(lab)(seed, lab.new_folder)
            model = other.model("biased")
            (run,) = other.run(other.engine(engine_cls, model), other.prompt(model, 5), other.params(6))
            lab.follows(run, model, code, f"generated with a model of {other.sizes}", hint)

    def test_P0_23_two_calls_in_a_row_are_independent(self, engine_cls, lab):
        code, hint = "P0-23", "what does the second request find that the first one left behind?"
        model = lab.model("qwen2-windows")
        engine = lab.engine(engine_cls, model)
        for length, steps in ((12, 9), (3, 4), (20, 6), (1, 12)):
            (run,) = lab.run(engine, lab.prompt(model, length), lab.params(steps, repetition_penalty=1.0))
            did = f"generated with an engine that had been used before: a prompt of {length}, {steps} new tokens"
            lab.follows(run, model, code, did, hint)

    def test_P0_25_a_closed_stream_frees_the_engine(self, engine_cls, lab):
        code, hint = "P0-25", "closing a generator raises GeneratorExit at its yield: release in a finally"
        model = lab.model()
        engine = lab.engine(engine_cls, model, lab.tokenizer())
        unused = engine.stream(lab.prompt(model, 3))
        stream = engine.stream(lab.prompt(model, 5), lab.params(10))
        next(stream)
        stream.close()
        unused.close()
        for sequence in engine.record.made[1:]:
            lab.check(
                sequence.finished,
                code,
                "closed a stream after its first piece",
                "a finished request",
                f"one that is {sequence.status.value}",
                hint,
            )
        (run,) = lab.run(engine, lab.prompt(model, 7), lab.params(6))
        lab.follows(run, model, code, "generated after a stream had been closed early", hint)
