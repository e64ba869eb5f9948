"""Phase 1: the right row of logits, and attention that is the formula. Each family isolates one mistake."""

import pytest


def test_P1_01_logits_of_the_last_position(engine_cls, lab):
    model = lab.model("gpt2")
    engine = lab.engine(engine_cls, model)
    for length in (1, 3, 11):
        (run,) = lab.run(engine, lab.prompt(model, length), lab.params(4))
        did = f"generated 4 tokens after a prompt of {length}"
        lab.equal(run.logits.shape, (4, model.config.vocab_size), "P1-01", did, "one row of logits per new token")
        lab.follows(run, model, "P1-01", did, "which position's logits say what follows the last token?")


@pytest.mark.points(needs="P1-01")
def test_P1_04_attention_is_scaled_by_the_head_dim(engine_cls, lab):
    model = lab.model("gpt2")  # no rotary embedding, no grouped heads: only the scale can be wrong
    (run,) = lab.run(lab.engine(engine_cls, model), lab.prompt(model, 9), lab.params(5))
    did = f"generated with head_dim {model.config.head_dim} and hidden size {model.config.hidden_size}"
    lab.follows(run, model, "P1-04", did, "q·k is divided by the root of which size?")


@pytest.mark.points(needs="P1-01")
def test_P1_05_rotary_pairs_are_half_a_head_apart(engine_cls, lab):
    model = lab.model("mha")  # no grouped heads: beside P1-04, only the rotation can be wrong
    engine = lab.engine(engine_cls, model)
    hint = "channel i turns with channel i + head_dim/2: (a·cos - b·sin, b·cos + a·sin)"
    (run,) = lab.run(engine, lab.prompt(model, 1), lab.params(1))
    lab.follows(run, model, "P1-05", "generated after one token, at position 0, which is not turned at all", hint)
    (run,) = lab.run(engine, lab.prompt(model, 20), lab.params(15))
    lab.follows(run, model, "P1-05", "generated 15 tokens after a prompt of 20", hint)


@pytest.mark.points(needs="P1-01")
def test_P1_06_query_heads_share_neighbouring_kv_heads(engine_cls, lab):
    model = lab.model("llama")
    sizes = lab.sizes
    (run,) = lab.run(lab.engine(engine_cls, model), lab.prompt(model, 9), lab.params(5))
    group = sizes.heads // sizes.kv_heads
    did = f"generated with {sizes.heads} query heads and {sizes.kv_heads} key/value heads"
    hint = f"query heads 0 to {group - 1} read key/value head 0: is that what repeating the heads gives?"
    lab.follows(run, model, "P1-06", did, hint)


def test_P1_13_inference_mode(engine_cls, lab):
    model = lab.model()
    module = model.module().train().requires_grad_(True)
    engine = lab.engine(engine_cls, module)
    engine.generate(lab.prompt(model, 4), lab.params(3))
    hint = "model.eval() once, and torch.inference_mode() around a step"
    lab.equal(engine.record.training, {False}, "P1-13", "looked at model.training in each forward", hint)
    lab.equal(engine.record.grad, {False}, "P1-13", "looked at torch.is_grad_enabled() in each forward", hint)
