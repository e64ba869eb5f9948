"""GPU placement without a GPU: prefill and decode of every phase on fake CUDA tensors.

No mixed devices; inside `forward` no copy between host and card in either direction, and no value read by the host; in
`sample` nothing comes back. What the host must know is read in `commit`, once per step.
"""

import pytest
import torch
from torch._subclasses.fake_tensor import (
    DataDependentOutputException,
    FakeTensor,
    FakeTensorDeviceMismatchError,
    unset_fake_temporarily,
)

from minfer.core import attention
from minfer.core.checkpoint.shapes import RandomCheckpoint
from minfer.core.config import ModelConfig
from minfer.core.models import model_class
from minfer.core.sampling import SamplingParams
from tests.parity.families import FAMILIES
from tests.parity.phases import PHASES, engine_class
from tests.placement.fake_cuda import Copy, FakeGPU, fake_cuda, place

GREEDY = SamplingParams(max_tokens=2)
DRAWN = SamplingParams(
    max_tokens=2,
    min_tokens=1,
    temperature=0.7,
    top_k=9,
    top_p=0.9,
    min_p=0.01,
    repetition_penalty=1.1,
    presence_penalty=0.5,
    frequency_penalty=0.5,
    logit_bias={3: 1.0},
)


class Run:
    """An engine on the fake card: generates, and keeps what it copied and what it handed to `commit`."""

    def __init__(self, phase: int, family: str, watch) -> None:
        config = ModelConfig.from_dict(FAMILIES[family])
        with torch.device("meta"):
            model = model_class(config)(config)
        kind = engine_class(phase)
        self.watch, self.drawn = watch, []
        self.engine = kind(place(model), None, kind.Options(device=FakeGPU()))
        for hook in ("prepare", "forward", "sample"):
            setattr(self.engine, hook, self._in_section(hook))
        self._commit, self.engine.commit = self.engine.commit, self._scripted_commit
        watch.copies.clear()

    def _in_section(self, hook: str):
        plain = getattr(self.engine, hook)

        def call(*args):
            before, self.watch.section = self.watch.section, hook
            try:
                return plain(*args)
            finally:
                self.watch.section = before

        return call

    def _scripted_commit(self, sequences, token_ids) -> None:
        """Fake tokens have no values to read: the model is made to have said 7."""
        self.drawn.append(token_ids)
        with unset_fake_temporarily():
            self._commit(sequences, torch.full((len(sequences),), 7))

    def generate(self, prompts, params):
        done = self.engine.generate(prompts, params)
        assert [one.token_ids for one in done] == [[7] * 2] * len(prompts)


PROMPTS = [[5, 6, 7, 8, 9, 10, 11], [12]]


CASES = [("llama3", GREEDY), ("mistral", GREEDY), ("qwen3-window", GREEDY), ("gpt2", GREEDY), ("llama3", DRAWN)]


@pytest.mark.parametrize(("family", "params"), CASES, ids=[*(name for name, _ in CASES[:-1]), "llama3-drawn"])
@pytest.mark.parametrize("phase", PHASES)
def test_a_step_stays_on_the_card(phase, family, params):
    with fake_cuda() as watch:
        run = Run(phase, family, watch)
        run.generate(PROMPTS, params)
        run.generate(PROMPTS[:1], params)  # once more, with what the first call left behind
    inside = [copy for copy in watch.copies if copy.section == "forward"]
    assert not inside, f"forward copies between host and card: {inside}"
    read = [copy for copy in watch.copies if copy.target != "cuda"]
    assert run.drawn
    if phase < 9:
        assert not read, f"the host reads before commit: {watch.copies}"
    else:  # the tokens are sent for when the step is launched
        assert {copy.section for copy in read} == {"set-up"}, f"the host reads within a step: {watch.copies}"
        assert len(read) == len(run.drawn)
    for token_ids in run.drawn:
        assert isinstance(token_ids, FakeTensor)
        where = "cuda" if phase < 9 else "cpu"
        assert (token_ids.device.type, token_ids.dtype, token_ids.dim()) == (where, torch.int64, 1)


def broken(monkeypatch, attribute: str, change) -> None:
    """Plant a mistake in the attention that phase 1 and all later masks go through."""
    plain = getattr(attention, attribute)
    monkeypatch.setattr(attention, attribute, lambda *args, **kwargs: change(plain, *args, **kwargs))


def read_a_value(plain, q, visible):
    return plain(q, visible) * float(visible.keys.sum().item() > 0)


def mask_on_the_host(plain, *args):
    return plain(*args).cpu()


def copy_a_constant(plain, q, visible):
    return plain(q, visible) + torch.tensor([0.0]).to(q.device)


def index_from_the_host(plain, q, visible):
    return plain(q, visible)[torch.arange(q.shape[0], device="cpu")]


MISTAKES = [
    ("attend", read_a_value, DataDependentOutputException, "_local_scalar_dense"),
    ("causal_mask", mask_on_the_host, (FakeTensorDeviceMismatchError, AssertionError), "device"),
    ("attend", index_from_the_host, AssertionError, "mixes cuda:0 and cpu in forward"),
]


@pytest.mark.parametrize(("attribute", "change", "error", "message"), MISTAKES)
def test_this_check_catches(monkeypatch, attribute, change, error, message):
    broken(monkeypatch, attribute, change)
    with fake_cuda() as watch:
        run = Run(1, "mistral", watch)
        with pytest.raises(error, match=message):
            run.generate([PROMPTS[0]], GREEDY)


def test_this_check_catches_a_copy_inside_a_layer(monkeypatch):
    broken(monkeypatch, "attend", copy_a_constant)
    with fake_cuda() as watch:
        Run(1, "mistral", watch).generate([PROMPTS[0]], GREEDY)
    assert Copy("forward", "cpu", "cuda") in watch.copies


def test_this_check_catches_positions_left_on_the_host():
    with fake_cuda() as watch:
        run = Run(1, "llama3", watch)
        prepare = run.engine.prepare

        def on_the_host(sequences):
            batch = prepare(sequences)
            batch.positions = torch.arange(len(batch.positions), device="cpu")
            return batch

        run.engine.prepare = on_the_host
        with pytest.raises(AssertionError, match=r"aten\.index\.Tensor mixes cuda:0 and cpu in forward"):
            run.generate([PROMPTS[0]], GREEDY)


LOADERS = [phase for phase in PHASES[1:] if "build_model" in vars(engine_class(phase))]


@pytest.mark.parametrize("phase", LOADERS)
def test_loading_puts_every_weight_and_the_rotary_table_on_the_card(phase):
    """Phase 1 moves a whole module, which fake tensors cannot; from phase 2 on each weight is made where it stays."""
    kind = engine_class(phase)
    with fake_cuda():
        options = kind.Options(device=FakeGPU(), dtype="float16")
        model = kind.build_model(RandomCheckpoint("random:smollm2-135m"), options)
        assert {(weight.device.type, weight.dtype) for weight in model.parameters()} == {("cuda", torch.float16)}
        assert (model.rotary.device.type, model.rotary.dtype) == ("cuda", torch.float32)
