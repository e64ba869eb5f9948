"""What only a card can show: graphs that are really recorded, the memory that they take, and that replays are right."""

import gc

import pytest
import torch

from minfer.core.errors import DeviceError
from minfer.core.options import make_options
from minfer.phase8 import Engine, GraphOptions

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="records graphs on an NVIDIA card: there is none"),
]
LENGTHS, COUNTS = (5, 9, 3, 14, 1), (9, 14, 5, 11, 7)


def engine(model, dtype=torch.float64, **options):
    given = {"block_size": 4, "num_blocks": 80, "max_batch": 8, "compiler": "none", **options}
    return Engine(model.module(dtype).to("cuda"), None, make_options(GraphOptions, given))


def served(made, lab, prompts):
    """Tokens and logits of each step, `(steps, vocab)` on the host."""
    rows = {}
    sample = made.sample

    def recording(logits, sequences):
        for row, sequence in zip(logits, sequences, strict=True):
            rows.setdefault(sequence.id, []).append(row.clone())
        return sample(logits, sequences)

    made.sample = recording
    done = made.generate(prompts, [lab.params(count) for count in COUNTS])
    return [one.token_ids for one in done], [torch.stack(rows[number]).cpu() for number in sorted(rows)]


@pytest.mark.parametrize("family", ["llama", "qwen3", "mistral", "gpt2"])
def test_a_replay_is_what_the_step_is_without_graphs(lab, family):
    model = lab.model(family)
    prompts = [lab.prompt(model, length) for length in LENGTHS]
    made = engine(model)
    tokens, logits = served(made, lab, prompts)
    assert made.graph_usage()["replays"] > 10
    want_tokens, want_logits = served(engine(model, graph_batch=0), lab, prompts)
    assert tokens == want_tokens
    for got, want in zip(logits, want_logits, strict=True):
        torch.testing.assert_close(got, want, rtol=0, atol=1e-9)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_a_replay_is_close_in_the_dtypes_of_cards(lab, dtype):
    model = lab.model("llama3")
    made, eager = engine(model, dtype), engine(model, dtype, graph_batch=0)
    prompts = [lab.prompt(model, 7)] * len(COUNTS)
    (got, *_), (want, *_) = (served(one, lab, prompts)[1] for one in (made, eager))
    assert made.graph_usage()["replays"] > 10
    torch.testing.assert_close(got[1], want[1], rtol=0, atol=0.05 * float(want[1].abs().max()))  # the first replay


def test_earlier_logits_stay_when_later_steps_are_replayed(lab):
    model = lab.model()
    made = engine(model)
    forward, kept = made.forward, []

    def keeping(batch):
        logits = forward(batch)
        kept.append((logits, logits.clone()))
        return logits

    made.forward = keeping
    made.generate([lab.prompt(model, length) for length in LENGTHS], lab.params(9))
    for logits, then in kept:
        assert torch.equal(logits, then)


def test_all_graphs_live_in_the_memory_of_the_largest(lab):
    """A pool of its own for each would take some 2 MiB a graph at the least: torch's smallest segment."""
    model = lab.model()
    made = engine(model)
    usage = made.graph_usage()
    assert usage["graphs"] > 15
    assert 0 < usage["bytes"] <= made.capture_bytes + 4 * 2 * 2**20


def test_graphs_of_an_earlier_pool_go_when_memory_is_allocated_again(lab):
    model = lab.model()
    made = engine(model)
    prompts = [lab.prompt(model, length) for length in LENGTHS]
    want = served(made, lab, prompts)[0]
    gc.collect()
    torch.cuda.empty_cache()
    before = torch.cuda.memory_reserved()
    for _ in range(3):
        made.allocate()
    torch.cuda.empty_cache()
    assert torch.cuda.memory_reserved() <= before + 4 * 2**20
    assert [one.token_ids for one in made.generate(prompts, [lab.params(count) for count in COUNTS])] == want


def test_a_step_that_reads_a_value_cannot_be_recorded(lab):
    model = lab.scripted(3, [9] * 9, fail_at=30).to("cuda")
    model.script = model.script.to("cuda")
    options = {"block_size": 4, "num_blocks": 8, "max_batch": 2}
    with pytest.raises(DeviceError, match="cannot be recorded as a graph"):
        Engine(model, None, make_options(GraphOptions, options))
    torch.cuda.synchronize()  # the card is in order after it
    assert float(torch.ones(3, device="cuda").sum()) == 3


def test_a_compiled_step_is_recorded(lab):
    pytest.importorskip("triton", reason="compiles for a card, which takes Triton")
    model = lab.model()
    prompts = [lab.prompt(model, length) for length in LENGTHS]
    made = engine(model, torch.float32, compiler="inductor")
    logits = served(made, lab, prompts)[1]
    assert made.graph_usage()["replays"] > 10
    eager = engine(model, torch.float32, graph_batch=0)
    for got, want in zip(logits, served(eager, lab, prompts)[1], strict=True):
        first = slice(0, 2)  # the prefill and the first replay: later a near tie may part them
        torch.testing.assert_close(got[first], want[first], rtol=0, atol=1e-3 * float(want.abs().max()))
