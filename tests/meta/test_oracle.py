"""The oracle itself, against `transformers` on the same folder: all families, every step, with their own cache."""

import numpy as np
import pytest
import torch

from minfer.course.lab.families import Sizes, family_facts

FAMILIES = tuple(family_facts(Sizes.draw(0)))


@pytest.mark.filterwarnings("ignore:`past_key_values` is deprecated:FutureWarning")
@pytest.mark.parametrize("family", FAMILIES)
def test_the_oracle_agrees_with_transformers(family, lab):
    """To 1e-5 of the largest logit: their norms and rotary tables are computed in float32, whatever the weights are."""
    from transformers import AutoModelForCausalLM

    model = lab.model(family)
    folder = model.save(lab.new_folder())
    theirs = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float64, attn_implementation="eager")
    ids = lab.prompt(model, model.context)
    want = step_by_step(theirs, ids, first=lab.sizes.window - 2)
    got = model.oracle.logits(ids)
    assert np.abs(got - want).max() <= 1e-5 * np.abs(want).max()


@torch.inference_mode()
def step_by_step(model, ids, first):
    """Logits of every position: `first` tokens at once, then one by one with the model's own cache."""
    out = model(torch.tensor([ids[:first]]), use_cache=True)
    rows = [out.logits[0]]
    for token_id in ids[first:]:
        out = model(torch.tensor([[token_id]]), past_key_values=out.past_key_values, use_cache=True)
        rows.append(out.logits[0])
    return torch.cat(rows).numpy()


def test_the_oracle_shares_no_code_with_the_core():
    import ast
    from pathlib import Path

    import minfer.course.lab.oracle as oracle

    imports = [n for n in ast.walk(ast.parse(Path(oracle.__file__).read_text())) if isinstance(n, ast.ImportFrom)]
    assert {node.module for node in imports} <= {"collections.abc", "typing"}


def test_greedy_is_the_argmax_of_each_step(lab):
    model = lab.model()
    prompt = lab.prompt(model, 4, steps=5, margin=1e-2)
    tokens, rows = model.oracle.greedy(prompt, 5)
    again = model.oracle.logits([*prompt, *tokens])[3:-1]
    assert np.abs(rows - again).max() < 1e-12
    assert rows.argmax(-1).tolist() == tokens
    best = np.sort(rows, -1)
    assert (best[:, -1] - best[:, -2]).min() > 1e-2


@pytest.mark.parametrize("seed", range(40))
def test_no_two_sizes_are_equal(seed):
    sizes = Sizes.draw(seed)
    heads, kv_heads, head_dim = sizes.heads, sizes.kv_heads, sizes.head_dim
    products = [heads * head_dim, kv_heads * head_dim, sizes.hidden // heads, 2 * sizes.ffn, 3 * heads * head_dim]
    everything = [*vars(sizes).values(), *products, sizes.hidden + 1]
    assert len(set(everything)) == len(everything), sizes
    assert sizes.hidden % heads == 0
    assert (sizes.hidden + 1) % heads
