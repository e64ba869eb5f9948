"""Lab: what a graded test works with: tiny models, scripted ones, engines that are watched, comparisons.

A test is a function of `engine_cls` and `lab` and of nothing else, so the same test grades the reference, a student's
file and a planted bug. Everything is drawn from the lab's seed: there is nothing to write down beforehand.
"""

import random
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from minfer.core.config import ModelConfig
from minfer.core.options import make_options
from minfer.core.params import SamplingParams
from minfer.course.lab.buffers import CacheBuffers
from minfer.course.lab.differences import TOLERANCE, difference
from minfer.course.lab.families import EOS, Sizes, family_facts
from minfer.course.lab.recording import Run, recording
from minfer.course.lab.scripted import Constant, Pieces, Scripted
from minfer.course.lab.tiny import TinyModel, tiny_model
from minfer.course.machines.counting import HostReads, LiveBytes
from minfer.course.marks.verdict import Mismatch

FIRST_TEXT_ID = 4
"""Ids below are control tokens."""


class Lab:
    """Everything that one graded test needs. `new_folder` gives a fresh, empty folder.

    What it draws depends on the seed and on the test's name, not on which tests ran before.
    """

    eos = EOS

    def __init__(self, seed: int, new_folder: Callable[[], Path], test: str = "") -> None:
        self.seed, self.new_folder, self.test = seed, new_folder, test
        self.sizes = Sizes.draw(seed)
        self.families = tuple(family_facts(self.sizes))
        self._random = random.Random(f"{seed} {test}")

    # ---- models and prompts --------------------------------------------------------------------------------------

    def model(self, family: str = "llama", layers: int = 2) -> TinyModel:
        """The family's tiny model."""
        return tiny_model(family, self.seed, layers)

    def prompt(self, model: TinyModel, length: int, steps: int = 0, margin: float = 0.0) -> list[int]:
        """`length` token ids; with `steps`, such that each greedy step's best logit leads by `margin`."""
        for _ in range(200):
            ids = [self._random.randrange(FIRST_TEXT_ID, model.config.vocab_size) for _ in range(length)]
            if not steps or _lead(model.oracle.greedy(ids, steps)[1]) > margin:
                return ids
        raise AssertionError(f"no prompt of {length} tokens keeps a margin of {margin} over {steps} steps")

    def config(self, **facts: Any) -> ModelConfig:
        """A small llama's config, for scripted models; one layer."""
        base = {**family_facts(self.sizes)["llama"], "num_hidden_layers": 1}
        return ModelConfig.from_dict({**base, **facts})

    def scripted(self, prompt_length: int, answer: Sequence[int], fail_at: int | None = None, **facts: Any) -> Scripted:
        """A model that answers any prompt of that length with `answer`, and goes on with other tokens."""
        config = self.config(**facts)
        filler = [FIRST_TEXT_ID] * config.context
        script = [*filler[: prompt_length - 1], *answer, *filler][: config.context]
        return Scripted(config, script, fail_at)

    def constant(self, logits: Tensor) -> Constant:
        """A model that says the same logits `(vocab,)`, padded with -1e9, whatever it is asked."""
        wide = torch.full((self.sizes.vocab,), -1e9, dtype=torch.float64)
        wide[: len(logits)] = logits
        return Constant(self.config(), wide)

    def tokenizer(self, pieces: Mapping[int, bytes] | None = None, eos: Sequence[int] = (EOS,)) -> Pieces:
        """A tokenizer in which token i stands for `pieces[i]`, or for " i"."""
        return Pieces(self.sizes.vocab, pieces or {}, eos)

    # ---- engines and runs ----------------------------------------------------------------------------------------

    def engine(self, engine_cls: type, model: Any, tokenizer: Any = None, **options: Any) -> Any:
        """An engine for a `TinyModel` or a module, on the CPU, that records what it does in `engine.record`."""
        module = model.module() if isinstance(model, TinyModel) else model
        recorder: Any = recording(engine_cls)
        return recorder(module, tokenizer, make_options(recorder.Options, {"device": "cpu", **options}))

    def load(self, engine_cls: type, folder: Path, **options: Any) -> Any:
        """`engine_cls.load` of a folder, on the CPU, that records what it does."""
        recorder: Any = recording(engine_cls)
        return recorder.load(str(folder), **{"device": "cpu", "dtype": "float64", **options})

    def params(self, max_tokens: int | None = 8, **more: Any) -> SamplingParams:
        """Sampling parameters; end tokens are ignored unless asked for, so that runs have a known length."""
        return SamplingParams(max_tokens=max_tokens, **{"ignore_eos": True, **more})

    def run(self, engine: Any, prompts: Any, params: Any = None) -> list[Run]:
        """`engine.generate`, with the logits of each step."""
        before = len(engine.record.made)
        completions = engine.generate(prompts, self.params() if params is None else params)
        made = engine.record.made[before:]
        if len(made) != len(completions):
            raise Mismatch("contract", "called generate", f"{len(made)} completions", f"{len(completions)}")
        return [
            Run(completion, engine.record.rows(sequence, engine.config.vocab_size))
            for completion, sequence in zip(completions, made, strict=True)
        ]

    def sampled(self, engine: Any, logits: Sequence[float], params: Sequence[SamplingParams]) -> list[int]:
        """What `engine.sample` draws from one row of float32 logits, padded with -1e9, once for each of `params`."""
        wide = torch.full((len(params), self.sizes.vocab), -1e9)
        wide[:, : len(logits)] = torch.tensor(logits)
        sequences = engine.sequences([[FIRST_TEXT_ID]] * len(params), list(params))
        drawn: list[int] = []
        for row, sequence in zip(wide, sequences, strict=True):
            drawn += engine.sample(row[None].clone(), [sequence]).tolist()
        return drawn

    def caches(self, model: TinyModel, *holders: Any) -> CacheBuffers:
        """The key and value tensors that `holders` keep."""
        return CacheBuffers(model.config, *holders)

    host_reads = HostReads
    live_bytes = LiveBytes

    # ---- verdicts ------------------------------------------------------------------------------------------------

    def equal(
        self,
        got: Any,
        want: Any,
        code: str,
        did: str,
        hint: str = "",
        *,
        what: str = "step",
        tolerance: float = TOLERANCE,
    ) -> None:
        """Fail with one screen unless the two agree; arrays row by row, of which each is a `what`."""
        __tracebackhide__ = True
        found = difference(got, want, what, tolerance)
        if isinstance(got, NotImplementedError):
            raise got
        if found:
            raise Mismatch(code, did, expected=found[0], got=found[1], hint=hint, evidence=got)

    def check(self, condition: bool, code: str, did: str, expected: str, got: str, hint: str = "") -> None:
        """Fail with one screen unless `condition`."""
        __tracebackhide__ = True
        if not condition:
            raise Mismatch(code, did, expected, got, hint)

    def computes(self, run: Run, model: TinyModel, code: str, did: str, hint: str = "") -> None:
        """Fail unless every step's logits are the oracle's, whatever was drawn from them."""
        __tracebackhide__ = True
        self.equal(run.completion.error, None, code, f"{did}; looked for an error", hint)
        known = [*run.prompt_ids, *run.token_ids]
        want = model.oracle.logits(known)[len(run.prompt_ids) - 1 : -1]
        self.equal(run.logits, want, code, f"{did}; looked at the logits of each step", hint)

    def follows(self, run: Run, model: TinyModel, code: str, did: str, hint: str = "") -> None:
        """Fail unless every step's logits are the oracle's, and every token the likeliest."""
        __tracebackhide__ = True
        self.computes(run, model, code, did, hint)
        self.equal(run.token_ids, run.logits.argmax(-1).tolist(), code, f"{did}; looked at the tokens", hint)

    def each(self, names: Sequence[str], check: Callable[[str], None]) -> None:
        """Run `check` for every name and fail with the first mismatch, saying which other names fail too."""
        __tracebackhide__ = True
        failed: dict[str, Mismatch] = {}
        for name in names:
            try:
                check(name)
            except Mismatch as mismatch:
                failed[name] = mismatch
        if failed:
            first = next(iter(failed.values()))
            fails = f"{len(failed)} of {len(names)} fail: {', '.join(failed)}"
            got = f"{first.got} ({fails})"
            raise Mismatch(first.code, first.did, first.expected, got, first.hint, first.evidence)

    def raises(self, kind: type[Exception], call: Callable[[], Any], code: str, did: str, hint: str = "") -> str:
        """Fail unless `call` raises `kind`; returns the message."""
        __tracebackhide__ = True
        try:
            call()
        except kind as error:
            return str(error)
        raise Mismatch(code, did, f"{kind.__name__} to be raised", "no error", hint)


def _lead(logits: np.ndarray) -> float:
    """By how much the best logit leads the second, in the row where it leads least."""
    best = np.sort(logits, axis=-1)
    return float((best[:, -1] - best[:, -2]).min())
