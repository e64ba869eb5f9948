"""Measured: requests on an engine of phase 11, on a device whose time is prescribed.

What these tests ask of an engine, beside what `tests/phase5/serving.py` and `tests/phase8/graphs.py` say:

    device.clock()           the only clock; device.stopwatch() for what the device is at
    warmup_s                 seconds that the engine took to compile, record and allocate
    requests()               of each finished request, in the order of their ends: {"request": id, "input_tokens",
                             "output_tokens", "arrived", "queue", "prefill", "first_sample", "ttft", "tpot", "e2e"}, in
                             seconds; tpot is None for one token; queue + prefill + first_sample = ttft
    metrics(limits=None)     {"completed", "failed", "duration", "input_tokens", "output_tokens", "warmup_s",
                             "request_throughput", "output_throughput", "total_token_throughput"}; and of each of
                             "ttft_ms", "queue_ms", "prefill_ms", "first_sample_ms", "tpot_ms", "itl_ms", "e2el_ms",
                             "tokens_per_s_per_user": {"mean", "p50", "p95", "p99", "max", "count"}; with limits,
                             "chat", "reading", "answer" or "all", also "request_goodput" and "met"
    step_lines()             of each of the last steps, plain JSON values: {"step", "work": [{"id", "tokens", "kind"}],
                             "tokens", "padded", "rows", "finished", "failed", "preempted", "running", "waiting",
                             "used_blocks", "free_blocks", "unused_slots", "graph": [rows, blocks] or None,
                             "recompiles", "comm_bytes", "comm_counted",
                             "parts": {"schedule", "prepare", "forward", "sample", "commit"}, "started", "seconds",
                             "device_forward", "flops", "bytes_read", "bytes_written"}, times in seconds
    options.step_log         a file that gets these lines as they come
    memory()                 weights, kv, buffers, activations, runtime, total, in bytes
    profile(prompts, params, trace=None)   completions, wall_s, busy_s, idle_share, error, kernels (each name, calls,
                             seconds), memory; the trace has ranges minfer.step, and in it one minfer.PART for each
                             part; and counter tracks "tokens in the step", "requests", "blocks of the KV cache"
"""

import sys
from contextlib import contextmanager

from minfer.core.sampling import sampling
from minfer.course.machines.clocks import ClockedDevice, Costly, ReadsWait

DRAW = 0.5
"""Seconds that drawing a step's tokens takes, where it is prescribed."""


class Measured:
    """An engine over a scripted model, whose forwards take `costs` seconds, one after another."""

    def __init__(
        self, engine_cls, lab, costs=(2.0,), lazy=True, capture=0.0, prompt=3, answer=(), fail_at=None, **options
    ):
        facts = {name: options.pop(name) for name in ("max_position_embeddings",) if name in options}
        self.lab = lab
        self.device = ClockedDevice(lazy, capture)
        model = Costly(lab.scripted(prompt, answer or [7] * 12, fail_at, **facts), self.device, costs)
        options = {"block_size": 4, "num_blocks": 30, "device": self.device, **options}
        self.engine = lab.engine(engine_cls, model, lab.tokenizer(), **options)
        self.prompt, self.submitted = [5] * prompt, []

    def run(self, *counts, **asked):
        """Answer requests of so many tokens that arrive together; their completions."""
        with ReadsWait(self.device):
            return self.engine.generate([self.prompt] * len(counts), [self.lab.params(n, **asked) for n in counts])

    def submit(self, count):
        self.submitted.append(self.engine.submit(self.prompt, self.lab.params(count)))
        return self.submitted[-1]

    def drain(self):
        with ReadsWait(self.device):
            while not all(sequence.finished for sequence in self.submitted):
                self.engine.step()


@contextmanager
def slow_draws(device):
    """A draw takes the device `DRAW` seconds, whichever module has imported it."""
    sample = sampling.sample
    users = [one for one in list(sys.modules.values()) if getattr(one, "sample", None) is sample]

    def slow(logits, sequences):
        device.queue(DRAW)
        return sample(logits, sequences)

    for user in users:
        user.sample = slow
    try:
        yield
    finally:
        for user in users:
            user.sample = sample
