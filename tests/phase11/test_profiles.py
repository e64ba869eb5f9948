"""Profiles: what torch.profiler sees of a run, in a trace that loads; and the memory by its parts."""

import gzip
import json
import re
import warnings
from collections import defaultdict

from minfer.core.errors import MinferError, MinferWarning
from minfer.course.machines.counting import HostReads
from tests.phase11.measured import Measured

PARTS = ("schedule", "prepare", "forward", "sample", "commit")


def events(path):
    """All events of a trace."""
    text = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
    return json.loads(text)["traceEvents"]


def counters(path):
    """The trace's counter tracks: name -> [(µs, values), …] in their order."""
    found = defaultdict(list)
    for event in events(path):
        if event.get("ph") == "C":
            found[event["name"]].append((event["ts"], event["args"]))
    return {name: sorted(samples, key=lambda sample: sample[0]) for name, samples in found.items()}


def ranges(path):
    """The trace's own ranges: (name without minfer., start, end), outer ones first, in µs."""
    own = [e for e in events(path) if e.get("ph") == "X" and e.get("name", "").startswith("minfer.")]
    spans = [(e["name"][len("minfer.") :], e["ts"], e["ts"] + e["dur"]) for e in own]
    return sorted(spans, key=lambda span: (span[1], -span[2]))


def test_P11_07_looking_changes_nothing(engine_cls, lab):
    code, hint = "P11-07", "the transfer of the tokens is the only wait in a step: no other read, no synchronize()"
    model = lab.model("mistral")
    prompts = [lab.prompt(model, length) for length in (5, 9)]
    params = [lab.params(6), lab.params(4, temperature=1.5, seed=lab.seed)]
    engine = lab.engine(engine_cls, model, lab.tokenizer())
    plain = [completion.token_ids for completion in engine.generate(prompts, params)]
    seen = [completion.token_ids for completion in engine.profile(prompts, params).completions]
    lab.equal(seen, plain, code, "compared the tokens of profile() with those of generate()", hint)
    after = [completion.token_ids for completion in engine.generate(prompts, params)]
    lab.equal(after, plain, code, "generated once more after profile()", hint)
    measured = Measured(engine_cls, lab, [1.0])
    measured.submit(8)
    before = measured.device.synchronizations
    measured.engine.step()
    measured.engine.step()
    with HostReads() as reads:
        measured.engine.step()
    did = "made a step that only decodes"
    lab.equal(reads.total, 1, code, f"{did}; counted the reads of a tensor's values: {dict(reads.calls)}", hint)
    lab.equal(measured.device.synchronizations, before, code, f"{did}; counted the calls of synchronize()", hint)


def test_P11_10_the_trace_loads_and_its_ranges_nest(engine_cls, lab):
    code, hint = "P11-10", "every range that was opened is closed, also where a step fails; none is open between steps"
    path = lab.new_folder() / "trace.json"
    for fail_at, counts in ((None, (3, 2)), (4, (4, 4)), (4, (4,))):
        measured = Measured(engine_cls, lab, [1.0], fail_at=fail_at)
        params = [lab.params(count) for count in counts]
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", MinferWarning)
            profile = measured.engine.profile([measured.prompt] * len(counts), params, trace=path)
        failed = fail_at is not None
        did = f"profiled {len(counts)} requests" + (", a step of which fails" if failed else "")
        lab.equal(profile.error is not None, failed and len(counts) == 1, code, f"{did}; looked for an error", hint)
        spans = ranges(path)
        turns = [span for span in spans if span[0] == "step"]
        made = []
        for _, start, end in turns:
            inside = [span for span in spans if span[0] != "step" and start <= span[1] <= end]
            made.append("".join(span[0][:2] for span in inside))  # sc, pr, fo, sa, co
            stops = [span[2] for span in inside]
            begins = [*(span[1] for span in inside[1:]), end]
            ordered = all(stop <= begin for stop, begin in zip(stops, begins, strict=True))
            lab.equal(ordered, True, code, f"{did}; looked whether each part ends before the next begins", hint)
        odd = [turn for turn in made if not re.fullmatch("sc(prfo(sa)?sc)*(cosc)*", turn)]
        lab.equal(odd, [], code, f"{did}; looked at the order of the parts in each turn", hint)
        lines = measured.engine.step_lines()
        found = [sum(turn.count(part) for turn in made) for part in ("pr", "fo", "sa")]
        drawn = sum(line["device_forward"] is not None for line in lines)
        lab.equal(found, [len(lines), len(lines), drawn], code, f"{did}; counted the parts, beside the log", hint)
        names = {span[0] for span in spans} - {"step", *PARTS}
        lab.equal(names, set(), code, f"{did}; looked for other ranges", hint)


def test_P11_11_counters_stand_beside_the_ranges(engine_cls, lab):
    code, hint = "P11-11", "tokens from a step's launch on; requests and blocks as the turn has left them, at its end"
    for name in ("trace.json", "trace.json.gz"):
        path = lab.new_folder() / name
        measured = Measured(engine_cls, lab, [1.0], max_batch=2)
        measured.run(2)  # a step before the profile is in the log, but not in the trace
        logged = len(measured.engine.step_lines())
        measured.engine.profile([measured.prompt] * 3, [lab.params(count) for count in (6, 3, 2)], trace=path)
        lines = measured.engine.step_lines()[logged:]
        spans = ranges(path)
        did = f"profiled three requests, two at a time, into {name}"
        starts = [span[1] for span in spans if span[0] == "prepare"]
        ends = [span[2] for span in spans if span[0] == "step"]
        want = {
            "tokens in the step": (
                starts,
                [{"for requests": one["tokens"], "padding": one["padded"]} for one in lines],
            ),
            "requests": (ends, [{"running": one["running"], "waiting": one["waiting"]} for one in lines]),
            "blocks of the KV cache": (ends, [{"used": one["used_blocks"]} for one in lines]),
        }
        found = counters(path)
        lab.equal(sorted(found), sorted(want), code, f"{did}; looked for counter tracks", hint)
        for track, (moments, values) in want.items():
            lab.equal([value for _, value in found[track]], values, code, f"{did}; looked at {track!r}", hint)
            apart = max(abs(ts - moment) for (ts, _), moment in zip(found[track], moments, strict=True))
            lab.check(apart < 0.1, code, f"{did}; looked when {track!r} change", "moments of the steps", f"{apart} µs")


def test_P11_40_kernels_and_idle_time(engine_cls, lab):
    code, hint = "P11-40", "a kernel's own time, inner calls not counted twice; idle is when none is at work"
    model = lab.model()
    engine = lab.engine(engine_cls, model)
    profile = engine.profile([lab.prompt(model, 7)], lab.params(5))
    did = "profiled 5 steps of a small model"
    seconds = [kernel.seconds for kernel in profile.kernels]
    lab.equal(seconds, sorted(seconds, reverse=True), code, f"{did}; looked at the order of the kernels", hint)
    lab.equal(min(seconds) >= 0, True, code, f"{did}; looked at the least of {seconds}", hint)
    named = {kernel.name: kernel.calls for kernel in profile.kernels}
    attention = [calls for name, calls in named.items() if "scaled_dot_product" in name]
    want = 5 * model.config.num_layers
    lab.equal(bool(attention) and min(attention) == want, True, code, f"{did}; looked at calls in {named}", hint)
    whole, busy = sum(seconds), profile.busy_s
    lab.check(0 < whole <= 1.001 * busy, code, did, f"own times that add up to at most {busy}", f"{whole}", hint)
    lab.check(profile.busy_s < profile.wall_s, code, did, "less busy than wall time", f"{profile.busy_s}", hint)
    share = 1 - profile.busy_s / profile.wall_s
    lab.equal(round(profile.idle_share, 9), round(share, 9), code, f"{did}; looked at idle_share", hint)
    nowhere = lab.new_folder() / "nowhere" / "trace.json"
    did, before = "profiled with a trace in a folder that does not exist", len(engine.record.forwarded)
    lab.raises(MinferError, lambda: engine.profile([[5]], lab.params(1), trace=nowhere), code, did, hint)
    lab.equal(len(engine.record.forwarded), before, code, f"{did}; counted the forwards before it was refused", hint)


def test_P11_41_memory_by_its_parts(engine_cls, lab):
    code, hint = "P11-41", "each tensor in one part, and once, whoever shares it; the runtime is what is left"
    for family in ("tied", "llama", "gpt2"):
        model = lab.model(family)
        engine = lab.engine(engine_cls, model, block_size=4, num_blocks=10)
        memory = engine.memory()
        did = f"{family}: looked at memory()"
        module = model.module()
        weights = sum(weight.nbytes for weight in module.parameters())
        lab.equal(memory.weights, weights, code, f"{did}.weights", hint)
        kv = (10 + 1) * 4 * model.config.kv_numbers_per_token * 8
        lab.equal(memory.kv, kv, code, f"{did}.kv: 10 blocks of 4, and a scratch block", hint)
        table = module.rotary.nbytes if hasattr(module, "rotary") else 0
        beside = memory.buffers - table
        lab.check(0 <= beside <= 2**16, code, f"{did}.buffers", f"about {table}", f"{memory.buffers}", hint)
        parts = [memory.weights, memory.kv, memory.buffers, memory.activations or 0, memory.runtime]
        lab.equal(memory.total, sum(parts), code, f"{did}.total", hint)
    short, long = (engine.profile([lab.prompt(model, n)], lab.params(1)).memory.activations for n in (4, 32))
    did = "profiled prompts of 4 and of 32 tokens; looked at memory.activations"
    logits = model.config.vocab_size * 8
    lab.check(logits <= short < long < 100 * short, code, did, "more for more tokens", f"{short} and {long}", hint)
