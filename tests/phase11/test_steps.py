"""The step log: one line for each step, which says what ran, what it cost, and how long its parts took."""

import json
import warnings
from collections import Counter
from itertools import pairwise
from math import prod

import torch
from torch.utils.flop_counter import FlopCounterMode

from minfer.core.errors import MinferError, MinferWarning
from minfer.course.machines.compiles import Compiles
from tests.phase5.serving import Serving
from tests.phase8.graphs import GraphServing
from tests.phase10.dealt import LAYOUTS, Dealt
from tests.phase11.measured import Measured

PARTS = ("schedule", "prepare", "forward", "sample", "commit")


def test_P11_30_a_line_says_what_ran(engine_cls, lab):
    code, hint = "P11-30", "who was in the step with how many tokens, and how the pool and the queues stood after it"
    model = lab.model()
    did = "four requests, chunks of 5, two at once, seven blocks of 4"
    serving = Serving(engine_cls, lab, model, code, did, hint, block_size=4, num_blocks=7, chunk_size=5, max_batch=2)
    prepared = watch(serving.engine, "prepare", lambda sequences: [(one.id, one.num_scheduled) for one in sequences])
    for length, count in ((9, 9), (6, 12), (3, 2), (7, 4)):
        serving.submit(lab.prompt(model, length), lab.params(count))
    preempted = landed = 0
    while serving.unfinished:
        had = [len(sequence.output_ids) for sequence in serving.sequences]
        open_before = len(serving.unfinished)
        serving.step()
        state, lines = serving.state, serving.engine.step_lines()
        new, landed, line = lines[landed:], len(lines), lines[-1]
        json.dumps(line)
        at = f"turn {serving.steps - 1}"
        taken = sum(len(s.output_ids) - n for s, n in zip(serving.sequences, had, strict=True))
        serving.equal(sum(one["rows"] - one["discarded"] for one in new), taken, f"{at}: rows that were taken in")
        serving.equal(sum(one["finished"] for one in new), open_before - len(serving.unfinished), f"{at}: finished")
        queues = [len(state["running"]), len(state["waiting"])]
        serving.equal([line["running"], line["waiting"]], queues, f"{at}: running, waiting")
        serving.equal([line["used_blocks"], line["free_blocks"]], [state["used"], state["free"]], f"{at}: blocks")
        unused = state["kv"]["allocated"] - state["kv"]["held"]
        serving.equal(line["unused_slots"], unused, f"{at}: slots of blocks in use that are empty")
        preempted = state["preemptions"]
    lines = serving.engine.step_lines()
    work = [[(entry["id"], entry["tokens"]) for entry in line["work"]] for line in lines]
    serving.equal(work, prepared, "compared the work of all steps with what was prepared")
    serving.equal([line["step"] for line in lines], list(range(len(lines))), "looked at the numbers of the steps")
    tokens = [sum(tokens for _, tokens in step) for step in prepared]
    serving.equal([line["tokens"] for line in lines], tokens, "looked at the tokens of all steps")
    serving.equal(sum(line["preempted"] for line in lines), preempted, "summed the preemptions")
    serving.equal(preempted > 0, True, "looked for preemptions, without which this says little")
    serving.equal(kinds(serving, lines), [], "looked at the kinds of work")
    serving.engine.step()
    serving.equal(len(serving.engine.step_lines()), len(lines), "stepped with nothing to do; counted the lines")


def watch(engine, hook, note):
    """What `note` says of the arguments of each call of a hook."""
    inner, noted = getattr(engine, hook), []

    def watching(*args):
        noted.append(note(*args))
        return inner(*args)

    setattr(engine, hook, watching)
    return noted


def kinds(serving, lines):
    """The entries whose kind is not what the tokens before them make it: (step, request, kind)."""
    held, drawn, wrong = Counter(), Counter(), []
    prompts = {one.id: one.num_prompt for one in serving.sequences}
    for line in lines:
        for entry in line["work"]:
            one, tokens, kind = entry["id"], entry["tokens"], entry["kind"]
            if kind == "decode" and (tokens != 1 or not drawn[one]):
                wrong.append((line["step"], one, kind))
            if kind == "prefill" and held[one] + tokens > prompts[one] and not drawn[one]:
                wrong.append((line["step"], one, kind))
            held[one] += tokens
            drawn[one] += held[one] >= prompts[one]
    return wrong


def test_P11_31_the_parts_add_up_to_the_step(engine_cls, lab):
    code, hint = "P11-31", "each part lasts until the next begins; the wait for the tokens is in `commit`"
    for lazy, part in ((False, "forward"), (True, "commit")):
        measured = Measured(engine_cls, lab, [4.0, 2.0, 1.0], lazy=lazy)
        measured.run(3, 2)
        did = f"two requests together, forwards of 4, 2, 1 s {'beside' if lazy else 'by'} the host"
        for line, cost in zip(measured.engine.step_lines(), (4.0, 2.0, 1.0), strict=True):
            want = {**dict.fromkeys(PARTS, 0.0), part: cost}
            lab.equal(line["parts"], want, code, f"{did}; looked at the parts of step {line['step']}", hint)
            got = [line["seconds"], line["device_forward"]]
            lab.equal(got, [cost, cost], code, f"{did}; looked at their sum, and at what the device told", hint)


def test_P11_32_padding_and_graphs(engine_cls, lab):
    code, hint = "P11-32", "what a graph computes for nobody is padding; a step that is not replayed has none"
    model = lab.model("qwen2")
    did = "five requests of different lengths on a card that records graphs"
    serving = GraphServing(engine_cls, lab, model, code, did, hint, max_batch=5)
    before = watch(serving.engine, "forward", lambda _: serving.device.replays)
    for length in (3, 4, 5, 6, 7):
        serving.submit(lab.prompt(model, length), lab.params(length))
    serving.drain()
    lines = serving.engine.step_lines()
    replayed = [after - then for then, after in pairwise([*before, serving.device.replays])]
    serving.equal([int(line["graph"] is not None) for line in lines], replayed, "looked which steps have a graph")
    padded = [line["graph"][0] - line["tokens"] if line["graph"] else 0 for line in lines]
    serving.equal([line["padded"] for line in lines], padded, "looked at the padding of each step")
    share = sum(padded) / sum(line["graph"][0] for line in lines if line["graph"])
    told = serving.engine.graph_usage()["padded_rows"]
    serving.equal(round(share, 9), round(told, 9), "compared the share of padding with graph_usage()")
    serving.equal(sum(padded) > 0, True, "looked for padding, without which this says little")


def test_P11_37_recompiles_are_those_of_the_step(engine_cls, lab):
    code, hint = "P11-37", "what was compiled when the engine was made is part of its warm-up, not of a step"
    model = lab.model()
    engine = lab.engine(engine_cls, model, compiler=Compiles.name)
    for length in (3, 8, 5):
        lab.run(engine, [lab.prompt(model, length)], lab.params(3))
    found = [line["recompiles"] for line in engine.step_lines()]
    did = "compiled a model, then generated after prompts of 3, 8, 5 tokens; looked at recompiles"
    lab.equal(found, [0] * 9, code, did, hint)


def test_P11_33_operations_and_bytes(engine_cls, lab):
    code = "P11-33"

    def check(family):
        hint = "2·N·(weights of the layers) + 2·R·vocab·hidden + 4·layers·heads·head_dim·Σ qᵢ·sᵢ"
        model = lab.model(family)
        config = model.config
        engine = lab.engine(engine_cls, model, block_size=4, num_blocks=30, chunk_size=6)
        for length in (9, 4):
            engine.submit(lab.prompt(model, length), lab.params(3))
        pair = 4 * config.num_layers * config.num_heads * config.head_dim
        kv = config.kv_numbers_per_token * 8
        stored = sum(weight.nbytes for weight in engine.model.parameters())
        steps = (([(0, 6), (0, 4)], 1), ([(6, 3), (4, 1)], 2), ([(9, 1), (5, 1)], 2))  # (held before, computed), rows
        for spans, rows in steps:
            engine.step()
            line = engine.step_lines()[-1]
            counts, ends = [count for _, count in spans], [start + count for start, count in spans]
            did = f"{family}: computed {counts} tokens behind {[start for start, _ in spans]}"
            attention = pair * sum(count * end for count, end in zip(counts, ends, strict=True))
            want = products(model.module(), sum(counts), rows) + attention
            lab.equal(int(line["flops"]), want, code, f"{did}; looked at flops", hint)
            got = [int(line[name]) for name in ("bytes_read", "bytes_written")]
            moved = [stored + kv * sum(ends), kv * sum(counts)]
            lab.equal(got, moved, code, f"{did}; looked at bytes: weights, K and V of contexts; of new tokens", hint)

    lab.each(("llama", "gpt2", "tied", "qwen3"), check)


def test_P11_38_bytes_between_ranks(engine_cls, lab):
    code = "P11-38"
    hint = "comm_bytes: activations that must be summed, gathered or given on; comm_counted: all that was said"
    for tensor, pipeline in ((1, 1), *LAYOUTS):
        with Dealt(engine_cls, lab, "llama", tensor, pipeline, chunk_size=6) as dealt:
            for length in (9, 4):
                dealt.engine.submit(lab.prompt(dealt.model, length), lab.params(3))
            before = watch(dealt.engine, "forward", lambda _, world=dealt.world: len(world.calls))
            for _ in range(4):
                dealt.engine.step()
            lines, own = dealt.engine.step_lines(), dealt.engine.model
            spans = pairwise([*before, len(dealt.world.calls)])
            for line, span, (tokens, rows) in zip(lines, spans, ((10, 1), (4, 2), (2, 2), (1, 1)), strict=True):
                did = f"{dealt.did}: computed {tokens} tokens and {rows} rows of logits"
                per_token, per_row = activations(dealt.model.config, tensor, pipeline)
                want = tokens * per_token + rows * per_row
                lab.equal(int(line["comm_bytes"]), want, code, f"{did}; looked at comm_bytes", hint)
                said = spoken(dealt.world.calls[slice(*span)], tensor * pipeline)
                lab.equal(line["comm_counted"], said, code, f"{did}; compared comm_counted with what was said", hint)
                everything = said > want or tensor * pipeline == 1
                lab.check(everything, code, did, f"the step's announcement beside {want} bytes", f"{said}", hint)
                share = arithmetic(dealt.engine, own, tensor, pipeline, line["step"])
                lab.equal(int(line["flops"]), share, code, f"{did}; looked at rank 0's own flops", hint)


def activations(config, tensor, pipeline):
    """Bytes that rank 0 of a model in float64 sums, gathers or gives on, for each token, and for each row of logits.

    Behind the last attention, only rows of logits are computed: so two sums are of these.
    """
    hidden, vocabulary = config.hidden_size, config.vocab_size
    if tensor == 1:
        return (8 * hidden, 8 * vocabulary) if pipeline > 1 else (0, 0)
    sums = 2 * (config.num_layers // pipeline) + 1
    if pipeline > 1:
        return 8 * hidden * (sums + 1), 8 * vocabulary
    return 8 * hidden * (sums - 2), 8 * (2 * hidden + -(-vocabulary // tensor) * tensor)


def spoken(calls, world):
    """Bytes of rank 0's operations among all ranks or its stage's; numbers of 8 bytes, as all are here."""
    own = [call for call in calls if call.rank == 0]
    return sum(8 * prod(call.shape) * (world if call.operation == "all_gather" else 1) for call in own)


def arithmetic(engine, model, tensor, pipeline, step):
    """Rank 0's own operations, by its own weights, heads and rows of the head."""
    tokens, rows, pairs = ((10, 1, 6 * 6 + 4 * 4), (4, 2, 3 * 9 + 5), (2, 2, 10 + 6), (1, 1, 11))[step]
    weights = sum(weight.numel() for name, weight in model.named_parameters() if "layers" in name and weight.ndim == 2)
    config, vocabulary = engine.config, model.config.vocab_size
    head = -(-vocabulary // tensor) * config.hidden_size if pipeline == 1 else 0
    attention = 4 * config.num_layers * config.num_heads * config.head_dim * pairs
    return 2 * tokens * weights + 2 * rows * head + attention


def products(module, tokens, rows):
    """Operations of the matrix products in a forward of `tokens` tokens with `rows` logits, as torch counts them."""
    ids = torch.arange(tokens)
    attention = [lambda q, k, v: q] * module.config.num_layers
    with FlopCounterMode(display=False) as counter:
        module(ids, ids, attention, ids[:rows])
    return counter.get_total_flops()


def test_P11_34_the_log_keeps_the_last_steps_in_the_same_memory(engine_cls, lab):
    code, hint = "P11-34", "an engine that runs for weeks must not grow: overwrite the oldest"
    facts = {"max_position_embeddings": 260, "num_blocks": 80, "graph_batch": 0}  # without graphs: many steps, quickly
    measured = Measured(engine_cls, lab, [1.0], answer=[7] * 250, **facts)
    kept = []
    for _ in range(12):
        measured.run(250)
        kept.append(len(measured.engine.step_lines()))
        if len(kept) > 1 and kept[-1] == kept[-2]:
            break
    did = "generated 250 tokens again and again, at most 12 times"
    lab.check(kept[-1] == kept[-2] >= 1000, code, did, "at least 1000 lines in the end, and no more", f"{kept}", hint)
    numbers = [line["step"] for line in measured.engine.step_lines()]
    total = 250 * len(kept)
    want = list(range(total - kept[-1], total))
    lab.equal(numbers, want, code, f"{did}; looked at the numbers of the kept steps", hint)
    started = [line["started"] for line in measured.engine.step_lines()]
    launched = [float(n - (n % 250 > 0)) for n in want]  # a second ahead, but for the first of each 250
    lab.equal(started, launched, code, f"{did}; looked at when they started", hint)


def test_P11_35_every_line_is_in_the_file(engine_cls, lab):
    code, hint = "P11-35", "a line for each step, written when it is known, in the order of the steps"
    path = lab.new_folder() / "steps.jsonl"
    measured = Measured(engine_cls, lab, [2.0, 1.0], step_log=str(path), max_batch=1)
    measured.run(3, 2)
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    did = "generated 3 and 2 tokens with step_log; read the file"
    lab.equal(len(lines), 5, code, f"{did}; counted the lines", hint)
    untimed = [{key: value for key, value in one.items() if key != "logging"} for one in lines]
    want = [{key: value for key, value in one.items() if key != "logging"} for one in measured.engine.step_lines()]
    lab.equal(untimed, want, code, f"{did}; compared it with step_lines()", hint)
    nowhere = str(path.parent / "nowhere" / "steps.jsonl")
    did = "made an engine whose step_log is in a folder that does not exist"
    lab.raises(MinferError, lambda: Measured(engine_cls, lab, step_log=nowhere), code, did, hint)


def test_P11_36_a_failed_step_is_written_down_too(engine_cls, lab):
    code, hint = "P11-36", "the request that failed is counted; the others' latencies are those of the steps they had"
    for count, completed in ((2, 2), (1, 0)):  # of several each is run again alone, and the failure is there only once
        measured = Measured(engine_cls, lab, [1.0], fail_at=4)
        sequences = [measured.submit(4) for _ in range(count)]
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", MinferWarning)
            measured.drain()
        figures, lines = measured.engine.metrics(), measured.engine.step_lines()
        did = f"{count} requests, whose third step fails once"
        got = [figures["completed"], figures["failed"], sum(line["failed"] for line in lines)]
        lab.equal(got, [completed, count - completed, count - completed], code, f"{did}; looked at the counts", hint)
        unknown = [line["step"] for line in lines if line["device_forward"] is None]
        lab.equal(unknown, [2], code, f"{did}; looked for steps without a time of the device", hint)
        over = [line["seconds"] - sum(line["parts"].values()) for line in lines]
        lab.equal(over, [0.0] * len(lines), code, f"{did}; compared the seconds with the parts", hint)
        ttfts = {row["request"]: row["ttft"] for row in measured.engine.requests()}
        want = {one.id: one.timestamps.tokens[0] for one in sequences if one.error is None}
        lab.equal(ttfts, want, code, f"{did}; looked at TTFT", hint)
