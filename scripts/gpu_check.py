"""Every phase on random weights of some shapes: what it takes to load and to answer, and whether the answers agree.

Run by `gpu_check.sh`. Each phase runs in a process of its own, so that one that breaks the card's context fails alone.
"""

import argparse
import itertools
import json
import subprocess
import sys
import time

MODELS = ("random:tinyllama-1.1b", "random:llama2-7b")
PHASES = range(1, 12)
PROMPTS, PROMPT, TOKENS = 8, 64, 32
FEW = 8  # tokens where every step computes all tokens again (phases 1 and 2), one request after another
LONGEST = 90.0  # seconds of one phase
COLUMNS = ("phase", "load s", "GB", "warm-up s", "TTFT ms", "ms a step", "tokens/s", "as phase 3")


def main() -> int:
    """0: every phase answered, or said why it cannot here."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("models", nargs="*", default=MODELS)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--seconds", type=float, default=300.0, help="after which no further phase is begun")
    parser.add_argument("--phase", type=int, help="run just this one, and say what came of it as JSON")
    asked = parser.parse_args()
    if asked.phase:
        print(json.dumps(run(asked.phase, asked.models[0], asked.device)))
        return 0
    ends = time.monotonic() + asked.seconds
    return max(page(model, asked.device, ends) for model in asked.models or MODELS)


def page(model: str, device: str, ends: float) -> int:
    """A table of one model; 1 if a phase failed."""
    print(f"\n{model} on {device}: {PROMPTS} prompts of {PROMPT} tokens, {TOKENS} more each ({FEW} in phases 1 and 2)")
    print("  ".join(f"{name:>10}" for name in COLUMNS))
    failed, expected = 0, None
    for phase in PHASES:
        row = child(phase, model, device, min(LONGEST, ends - time.monotonic()))
        if phase == 3:
            expected = row.get("answers")
        if "problem" in row:
            failed |= not row["problem"].startswith("n/a")
            print(f"{phase:>10}  {row['problem']}")
            continue
        print("  ".join(f"{cell:>10}" for cell in cells(phase, row, expected)))
    return int(failed)


def cells(phase: int, row: dict, expected: list | None) -> list[str]:
    """A row of the table."""
    alike = "–"
    if expected and phase > 3:
        both = zip(itertools.chain(*row["answers"]), itertools.chain(*expected), strict=True)
        alike = f"{sum(one == other for one, other in both) / (PROMPTS * TOKENS):.0%}"
    numbers = ("load", "gigabytes", "warmup", "ttft_ms", "step_ms", "rate")
    return [str(phase), *("–" if row[name] is None else f"{row[name]:.2f}" for name in numbers), alike]


def child(phase: int, model: str, device: str, seconds: float) -> dict:
    """What came of a phase in a process of its own."""
    if seconds <= 0:
        return {"problem": "n/a (the time is up)"}
    command = [sys.executable, __file__, model, "--device", device, "--phase", str(phase)]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=seconds)
    except subprocess.TimeoutExpired:
        return {"problem": f"failed: no answer within {seconds:.0f} s"}
    if done.returncode:
        return {"problem": f"failed: {(done.stderr.strip().splitlines() or ['no word'])[-1][:150]}"}
    return json.loads(done.stdout.splitlines()[-1])


def run(phase: int, model: str, device: str) -> dict:
    """Load, answer once to warm up, answer once more with the clock on."""
    from minfer import SamplingParams
    from minfer.commands.phases import engine_class
    from minfer.core.device import CPU, Device
    from minfer.core.models import open_model

    checkpoint, _ = open_model(model)
    needed = 4 * sum(checkpoint.sizes.values()) if phase == 1 and hasattr(checkpoint, "sizes") else 0
    if needed > CPU().free_memory():
        return {"problem": f"n/a (phase 1 builds the model in host memory, float32 first: {needed / 1e9:.0f} GB)"}
    clock, place = time.perf_counter, Device.get(device)
    started = clock()
    engine = engine_class(phase).load(model, device=device)
    place.synchronize()
    loaded = clock()
    few = phase < 3
    prompts = [[4 + (7 * i + 11 * n) % 1000 % engine.config.vocab_size for i in range(PROMPT)] for n in range(PROMPTS)]
    prompts = prompts[:1] if few else prompts
    params = SamplingParams(max_tokens=FEW if few else TOKENS, ignore_eos=True)
    engine.generate(prompts, params)
    place.synchronize()
    warm = clock()
    answers = engine.generate(prompts, params)
    took = clock() - warm
    stamps = [one.timestamps for one in answers]
    tokens = sum(len(one.token_ids) for one in answers)
    gaps = [(one.tokens[-1] - one.tokens[0]) / (len(one.tokens) - 1) for one in stamps]
    return {
        "load": loaded - started,
        "gigabytes": place.taken_memory() / 1e9,
        "warmup": getattr(engine, "warmup_s", None),
        "ttft_ms": 1e3 * sum(one.tokens[0] - one.arrived for one in stamps) / len(stamps),
        "step_ms": 1e3 * sum(gaps) / len(gaps),
        "rate": tokens / took,
        "answers": [one.token_ids for one in answers],
    }


if __name__ == "__main__":
    sys.exit(main())
