"""Models: a quantised engine answers as its own dequantised model does, alone or in company; files keep the codes."""

import json

import pytest
import torch
from safetensors.torch import save_file

from minfer.core.errors import CheckpointError, MinferError, OptionsError
from tests.phase5.serving import Serving
from tests.phase6.quantized import FP8, FP16, INT4, INT8, SCHEMES, layers, twin

OPTIONS = {"block_size": 3, "num_blocks": 18, "max_batch": 4, "chunk_size": 5, "token_budget": 12}


def stored(engine, model, folder, **facts):
    """Write the engine's model as `minfer quantize` does: its parameters under the names of files, and the config."""
    engine_model = engine.model
    parameters = {
        name if name.startswith("lm_head") else engine_model.file_prefix + name: parameter.detach().contiguous()
        for name, parameter in engine_model.named_parameters()
    }
    model.save(folder)
    save_file(parameters, folder / "model.safetensors", metadata={"format": "pt"})
    options = engine.options
    kept = {"quant_method": "minfer", "version": 1, "scheme": options.quantization, "group_size": options.group_size}
    kept |= {"quantize_head": options.quantize_head, **facts}
    tied = {"tie_word_embeddings": False} if options.quantize_head else {}
    config = {**json.loads((folder / "config.json").read_text()), **tied, "quantization_config": kept}
    (folder / "config.json").write_text(json.dumps(config))
    return folder


def test_P6_20_it_answers_as_its_dequantised_model(engine_cls, lab):
    hint = "each linear layer must multiply with what its codes stand for, bias and all"
    for options in (*SCHEMES, {**INT4, "group_size": 64}, {**INT8, "quantize_head": True}):

        def check(family, options=options):
            model = lab.model(family)
            engine = lab.engine(engine_cls, model, **options)
            exact = twin(model, engine)
            if options.get("quantize_head") and model.config.tie_word_embeddings:
                return  # the oracle ties what is no longer tied
            (run,) = lab.run(engine, lab.prompt(model, lab.sizes.window + 3), lab.params(3))
            lab.follows(run, exact, "P6-20", f"{family} with {options}: generated 3 tokens", hint)

        lab.each(lab.families, check)


@pytest.mark.points(needs="P6-20")
def test_P6_27_quantised_requests_in_company(engine_cls, lab):
    code, hint = "P6-27", "preemption, chunks and shared prefixes change nothing but the order of work"
    for family, options in (("mistral", INT8), ("llama", INT4), ("gpt2", INT4), ("qwen3", INT8)):
        model = lab.model(family)
        did = f"{family} with {options}: served requests under pressure"
        service = Serving(engine_cls, lab, model, code, did, hint, **OPTIONS, **options)
        service.model = twin(model, service.engine)
        prefix = lab.prompt(model, 7)
        prompts = [prefix + lab.prompt(model, 1 + n) for n in range(3)] + [lab.prompt(model, 16)]
        service.serve(prompts, lab.params(12))
        lab.check(service.state["preemptions"] > 0, code, did, "a preemption", "none", hint)
        lab.check(service.state["shared_tokens"] > 0, code, did, "a shared prefix", "none", hint)


@pytest.mark.points(needs="P6-20")
def test_P6_28_a_stored_model_has_the_same_codes(engine_cls, lab):
    code, hint = (
        "P6-28",
        "build_model: quantised layers on meta, then each tensor in its own dtype; nothing is rounded twice",
    )
    cases = [("llama", INT8, {}), ("tied", INT4, {}), ("gpt2", INT4, {"quantize_head": True}), ("biased", FP8, {})]
    for family, scheme, more in [*cases, ("qwen3", FP16, {})]:
        model = lab.model(family)
        fresh = lab.engine(engine_cls, model, **scheme, **more)
        folder = stored(fresh, model, lab.new_folder())
        loaded = lab.load(engine_cls, folder)
        did = f"{family}: loaded a folder stored as {scheme['quantization']}"
        ours, theirs = dict(loaded.model.named_parameters()), dict(fresh.model.named_parameters())
        lab.equal({n: p.dtype for n, p in ours.items()}, {n: p.dtype for n, p in theirs.items()}, code, did, hint)
        for name, parameter in ours.items():
            same = torch.equal(parameter.double(), theirs[name].double())
            lab.check(same, code, did, f"{name} as it was stored", "other numbers", hint)
        prompt = lab.prompt(model, 6)
        (one,), (other,) = lab.run(loaded, prompt, lab.params(4)), lab.run(fresh, prompt, lab.params(4))
        lab.equal(one.logits.tolist(), other.logits.tolist(), code, f"{did}; logits", hint)


def test_P6_29_what_contradicts_is_refused(engine_cls, lab):
    code, hint = "P6-29", "names, shapes, dtypes and options must fit; say which does not"
    model = lab.model("llama")
    engine = lab.engine(engine_cls, model, **INT4)
    good = stored(engine, model, lab.new_folder())
    refused = [
        (lambda: lab.load(engine_cls, good, **INT8), OptionsError, "int4"),
        (lambda: lab.load(engine_cls, good, **INT4, group_size=64), OptionsError, "int4-g32"),
        (lambda: lab.load(engine_cls, good, quantize_rows=True), OptionsError, "quantize_rows"),
        (
            lambda: lab.load(engine_cls, stored(engine, model, lab.new_folder(), scheme="int8")),
            CheckpointError,
            "codes",
        ),
        (
            lambda: lab.load(engine_cls, stored(engine, model, lab.new_folder(), group_size=64)),
            CheckpointError,
            "scale",
        ),
        (lambda: lab.load(engine_cls, stored(engine, model, lab.new_folder(), version=2)), MinferError, "version 2"),
        (lambda: lab.load(engine_cls, stored(engine, model, lab.new_folder(), scheme="nf4")), MinferError, "nf4"),
        (lambda: lab.engine(engine_cls, model, quantization="int5"), OptionsError, "int5"),
        (lambda: lab.engine(engine_cls, model, **INT4, group_size=48), OptionsError, "48"),
        (lambda: lab.engine(engine_cls, model, **INT4, quantize_rows=True), OptionsError, "int4"),
    ]
    for call, kind, part in refused:
        message = lab.raises(kind, call, code, f"asked for what cannot be ({part})", hint)
        lab.check(part in message, code, f"asked for what cannot be ({part})", f"an error with {part}", message, hint)
    lab.equal(len(layers(lab.load(engine_cls, good, **INT4).model)) > 0, True, code, "said what is stored anyway", hint)
