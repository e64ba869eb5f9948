"""Probes of phases 4 and 5: what is seen of requests in one batch, and of those that are served step by step."""

from minfer.core.params import SamplingParams
from tests.mutants.probes import ids

ENOUGH = 150
"""Steps after which a trace that goes on is cut off."""

HOT = [SamplingParams(count, temperature=1.5, seed=3, ignore_eos=True) for count in (6, 4, 8)]
"""Parameters of three requests that are sampled."""


def batch(family="llama", lengths=(2, 9, 5), counts=(6, 6, 6), prompts=None, asked=None, **options):
    """All that is seen of some prompts in one call: tokens, logits of every step, tokens computed per step."""

    def probe(engine_cls, lab):
        model = lab.model(family)
        engine = lab.engine(engine_cls, model, **options)
        given = prompts or [ids(model, length, number) for number, length in enumerate(lengths)]
        params = asked or [lab.params(count) for count in counts]
        runs = lab.run(engine, given, params)
        return (
            [(run.prompt_ids, run.token_ids, run.logits.round(6).tolist()) for run in runs],
            engine.record.forwarded,
        )

    return probe


def served(family="llama", lengths=(5, 9, 3), counts=(6, 4, 8), prompts=None, asked=(), act=None, gap=0, **options):
    """Everything that is seen of some requests: states after each step, tokens, logits of each draw, reasons, errors.

    `gap`: steps between two arrivals. `act(engine, sequences, step)` may do something before a step.
    """
    options = {"block_size": 4, "num_blocks": 20, **options}

    def probe(engine_cls, lab):
        model = lab.model(family)
        engine = lab.engine(engine_cls, model, **options)
        given = prompts or [ids(model, length, number) for number, length in enumerate(lengths)]
        params = asked or [lab.params(count) for count in counts]
        sequences, seen = [], []
        for step in range(ENOUGH):
            if len(sequences) < len(given) and (not gap or step % gap == 0):
                upto = len(sequences) + 1 if gap else len(given)
                sequences += [engine.submit(given[i], params[i]) for i in range(len(sequences), upto)]
            if act:
                act(engine, sequences, step)
            if len(sequences) == len(given) and all(sequence.finished for sequence in sequences):
                break
            engine.step()
            seen.append(snapshot(engine, sequences))
        seen.append(snapshot(engine, sequences))
        width = model.config.vocab_size
        rows = [engine.record.rows(sequence, width).round(6).tolist() for sequence in sequences]
        return seen, engine.record.forwarded, [outcome(sequence) for sequence in sequences], rows

    return probe


def snapshot(engine, sequences):
    """The engine's state with requests numbered in the order of their coming."""
    number = {sequence.id: place for place, sequence in enumerate(sequences)}
    state = engine.debug_state()
    return {
        **{key: state[key] for key in ("free", "used", "references", "preemptions", "shared_tokens", "kv")},
        "contiguous": state["kv_if_contiguous"],
        "tables": {number.get(owner): table for owner, table in state["tables"].items()},
        **{key: [number.get(one) for one in state[key]] for key in ("running", "waiting")},
        "step": [(number.get(entry["id"]), entry["tokens"]) for entry in state["step"]],
    }


def outcome(sequence):
    """How a request stands."""
    return sequence.output_ids, sequence.text, sequence.status, sequence.finish_reason, repr(sequence.error)
