"""Phase 10: what is summed, how often, what is dealt to whom, who decides, and what each rank reads."""

from contextlib import suppress
from math import prod

import pytest

from minfer.core.errors import MinferError
from tests.phase10.dealt import LAYOUTS, Dealt, right_in


def test_P10_01_partial_results_are_summed(engine_cls, lab):
    hint = "a rank has a part of the inputs of o_proj and of down_proj: its result is a summand of the layer's"
    right_in(engine_cls, lab, ("llama", "qwen3", "mistral"), ((2, 1), (3, 1)), "P10-01", hint)


def test_P10_02_two_sums_per_layer_and_no_more(engine_cls, lab):
    code, hint = "P10-02", "column-parallel results are whole as they are; the row-parallel products end in the one sum"
    for world in (2, 3):
        with Dealt(engine_cls, lab, "llama", world) as dealt:
            dealt.right(code, hint, lengths=(5,), steps=1)
            before = dealt.counts()
            dealt.right(code, hint, lengths=(1,), steps=1)
            sums = dealt.counts() - before
            most = 2 * dealt.model.config.num_layers + 1
            for rank in range(world):
                did = f"{dealt.did}: counted the all_reduces of rank {rank} in one step"
                lab.equal(sums[rank, "all_reduce"], most, code, f"{did}, one for the embedding and two per layer", hint)


@pytest.mark.points(needs="P10-01")
def test_P10_03_a_bias_is_added_once(engine_cls, lab):
    hint = "what every rank adds before the sum counts once per rank"
    right_in(engine_cls, lab, ("biased", "gpt2"), ((2, 1), (3, 1), (2, 2)), "P10-03", hint)


def test_P10_04_heads_are_dealt_whole_or_refused(engine_cls, lab):
    code, hint = "P10-04", "query heads belong with their key/value head; what does not come out even must not get lost"
    heads, kv_heads = lab.sizes.heads, lab.sizes.kv_heads
    right_in(engine_cls, lab, ("llama", "mha"), ((2, 1), (kv_heads, 1), (2 * kv_heads, 1)), code, hint)
    for world in (kv_heads + 1, heads + kv_heads):
        did = f"loaded a model of {heads} query and {kv_heads} key/value heads with tensor_parallel={world}"
        said = lab.raises(MinferError, lambda world=world: Dealt(engine_cls, lab, "llama", world), code, did, hint)
        named = all(str(number) in said for number in (heads, kv_heads, world))
        lab.check(named, code, did, "an error that names all three numbers", said, hint)


@pytest.mark.points(needs="P10-01")
def test_P10_05_merged_parameters_are_dealt_part_by_part(engine_cls, lab):
    hint = "c_attn is q, k and v one behind the other: a rank needs its heads of each, not the first rows of all"
    right_in(engine_cls, lab, ("gpt2", "llama"), ((2, 1), (3, 1)), "P10-05", hint)


@pytest.mark.points(needs="P10-01")
def test_P10_06_rows_and_columns_are_not_exchanged(engine_cls, lab):
    hint = "weights are (out, in): column-parallel layers are cut along out, row-parallel ones along in"
    right_in(engine_cls, lab, ("tied", "qwen2", "gpt2"), ((2, 1), (2, 2)), "P10-06", hint)


def test_P10_07_one_rank_draws_for_all(engine_cls, lab):
    code, hint = "P10-07", "random draws of several ranks differ: one draws, the others are told"
    for tensor, pipeline in LAYOUTS:
        with Dealt(engine_cls, lab, "llama", tensor, pipeline) as dealt:
            dealt.right(code, hint, lengths=(4, 7), steps=8, temperature=3.0, did=", sampled at temperature 3")


def test_P10_08_all_ranks_say_the_same(engine_cls, lab):
    code, hint = (
        "P10-08",
        "an operation that depends on the rank, or on what only one rank knows, is waited for in vain",
    )
    for tensor, pipeline in LAYOUTS:
        with Dealt(engine_cls, lab, "llama", tensor, pipeline, chunk_size=3, token_budget=8, graph_batch=2) as dealt:
            dealt.right(code, hint, lengths=(11, 2, 1, 8, 5), steps=5, prompt_logprobs=1, did=", in chunks")
            lab.equal(dealt.world.failed, "", code, f"{dealt.did}; asked the world what failed", hint)
            by_rank = {n: v for (n, _), v in dealt.counts().items()}
            lab.equal(sorted(by_rank), list(range(tensor * pipeline)), code, f"{dealt.did}; looked who took part", hint)


def test_P10_09_each_rank_reads_only_its_own(engine_cls, lab):
    code, hint = "P10-09", "what is cut is to be cut in the file, not in memory"
    for family in ("llama", "gpt2"):
        for tensor, pipeline in LAYOUTS:
            with Dealt(engine_cls, lab, family, tensor, pipeline) as dealt:
                stored = {name: 8 * prod(values.shape) for name, values in dealt.model.weights.items()}
                small = sum(
                    size for name, size in stored.items() if dealt.model.weights[name].ndim == 1 or "wpe" in name
                )
                cut = sum(stored.values()) - small
                largest = max(stored.values())
                # heads and layers do not always come out even: a rank may have one more of each
                most = small + cut * (0.7 if tensor * pipeline == 2 else 0.6) + largest * (pipeline > 1)
                did = f"{dealt.did}: bytes that rank 0 to {tensor * pipeline - 1} read of {sum(stored.values())}"
                read = dealt.engine.ranks.bytes_read
                lab.equal(len(read), tensor * pipeline, code, did, hint)
                lab.check(max(read) <= most, code, did, f"at most {most:.0f} each", f"{read}", hint)
                everything = sum(read) >= sum(stored.values()) - small
                lab.check(everything, code, did, f"{sum(stored.values())} together, at least", f"{sum(read)}", hint)


@pytest.mark.points(needs="P10-01")
def test_P10_10_the_vocabulary_is_padded_masked_and_trimmed(engine_cls, lab):
    code, hint = "P10-10", "rows behind the vocabulary are no tokens; a token of another rank is no row here"
    right_in(engine_cls, lab, ("llama", "tied", "qwen2-windows", "gpt2"), ((2, 1), (3, 1)), code, hint)
    for world in (2, 3):
        with Dealt(engine_cls, lab, "tied", world) as dealt:
            (run,) = dealt.run((6,), 1)
            did = f"{dealt.did}: looked at the number of logits"
            lab.equal(run.logits.shape[-1], dealt.model.config.vocab_size, code, did, hint)


def test_P10_11_every_layer_is_on_one_stage(engine_cls, lab):
    hint = "the embedding is on the first stage, norm and head on the last; a window belongs to its layer"
    families = ("llama", "tied", "qwen2-windows", "qwen3", "gpt2")
    right_in(engine_cls, lab, families, ((1, 2), (2, 2)), "P10-11", hint)


def test_P10_12_a_failed_step_is_over_for_all(engine_cls, lab):
    code, hint = "P10-12", "the others are in the middle of a step that rank 0 has left: they cannot go on with another"
    with Dealt(engine_cls, lab, "llama", 2) as dealt:
        dealt.right(code, hint, lengths=(3,), steps=2)
        model, count = dealt.engine.model, []

        def fail(*_):
            count.append(1)
            raise ArithmeticError("planted")

        model.layers[1].register_forward_pre_hook(fail)
        block = model.layers[1]
        block.enter = fail
        did = f"{dealt.did}: let rank 0 fail within a step"
        said = lab.raises(ArithmeticError, lambda: dealt.run((3,), 2), code, did, hint)
        lab.equal(said, "planted", code, did, hint)
        del block.enter
        block._forward_pre_hooks.clear()
        after = lab.raises(RuntimeError, lambda: dealt.run((3,), 2), code, f"{did}, and asked it again", hint)
        lab.check("planted" in after, code, did, "an error that names the first one", after, hint)
        with suppress(RuntimeError):
            dealt.engine.close()
        lab.equal(
            [t.name for t in dealt.world.threads if t.is_alive()], [], code, f"{did}; looked who still runs", hint
        )
