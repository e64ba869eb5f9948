"""Bad model folders: what the user reads, and that it is one line, of the right class, before anything is built.

One row is one thing that goes wrong. MODEL stands for the folder; a message is compared from its beginning.
"""

import shutil

import pytest
import torch

from minfer.core.errors import CheckpointError, ConfigError, TokenizerError
from tests.badinput.folders import (
    CONFIG,
    TOKENIZER,
    both,
    config,
    cut,
    file,
    gone,
    good_folder,
    shards,
    weights,
)
from tests.parity.phases import PHASES, engine_class

UP = "model.layers.1.mlp.up_proj.weight"
POINTER = "version https://git-lfs.github.com/spec/v1\noid sha256:1\nsize 3\n"
FIT = "MODEL (model.safetensors) does not fit its config.json, a LlamaForCausalLM: of the tensors, "
RUNS = "minfer runs LlamaForCausalLM, MistralForCausalLM, Qwen2ForCausalLM, Qwen3ForCausalLM, GPT2LMHeadModel"
QWEN = {"architectures": ["Qwen3ForCausalLM"], "use_sliding_window": True}


def move(name, other):
    return lambda tensors: tensors.update({other: tensors.pop(name)})


CONFIGS = {
    "another architecture": (
        config(architectures=["MixtralForCausalLM"]),
        f"architecture 'MixtralForCausalLM' is not supported; {RUNS}",
    ),
    "no head on top": (
        config(architectures=["LlamaModel"]),
        "architecture 'LlamaModel' is not supported; minfer runs Llama",
    ),
    "another model_type": (
        config(architectures=None, model_type="phi3"),
        "architecture 'phi3' is not supported; minfer runs",
    ),
    "no architecture": (
        config(architectures=[], model_type=None),
        f"neither architectures nor model_type says what the model is; {RUNS}",
    ),
    "an odd model_type": (config(architectures=None, model_type=["llama"]), "architecture ['llama'] is not supported"),
    "another activation": (
        config(hidden_act="mish"),
        "activation 'mish' is not supported; minfer has silu, swish, gelu, gelu_new,",
    ),
    "another scaling": (
        config(rope_scaling={"rope_type": "longrope"}),
        "RoPE scaling 'longrope' is not supported; minfer has default, linear, dynamic, llama3, yarn",
    ),
    "a scaling without its factor": (
        config(rope_scaling={"type": "linear"}),
        "RoPE scaling needs 'factor', which is missing from rope_parameters",
    ),
    "a scaling that is a list": (config(rope_scaling=[1]), "rope_scaling or rope_parameters is [1], not an object"),
    "a negative theta": (config(rope_theta=-1), "RoPE parameter rope_theta = -1 is not a positive number"),
    "a size of 0": (config(hidden_size=0), "hidden_size = 0 is not an integer of at least 1"),
    "a size as text": (config(hidden_size="12"), "hidden_size = '12' is not an integer of at least 1"),
    "a size that is true": (config(vocab_size=True), "vocab_size = True is not an integer of at least 1"),
    "half a position": (
        config(max_position_embeddings=1.5),
        "max_position_embeddings = 1.5 is not an integer of at least 1",
    ),
    "heads that cannot be grouped": (
        config(num_key_value_heads=2),
        "3 query heads cannot share 2 key/value heads: not a multiple",
    ),
    "a hidden size that heads do not divide": (
        config(hidden_size=13),
        "hidden_size 13 is not a multiple of 3 heads and head_dim is not given",
    ),
    "an odd head": (config(head_dim=5), "head_dim 5 is odd: rotary embedding turns pairs of channels"),
    "an epsilon as text": (config(rms_norm_eps="small"), "rms_norm_eps = 'small' is not a number of at least 0"),
    "a flag as text": (config(tie_word_embeddings="yes"), "tie_word_embeddings = 'yes' is neither true nor false"),
    "an end token as text": (config(eos_token_id="</s>"), "eos_token_id = '</s>' is not a token id or a list of them"),
    "a first token as text": (config(bos_token_id="<s>"), "bos_token_id = '<s>' is not a token id or a list of them"),
    "quantised weights": (
        config(quantization_config={"bits": 4}),
        "quantization_config = {'bits': 4} would change the result and is not supported",
    ),
    "capped logits": (
        config(final_logit_softcapping=30.0),
        "final_logit_softcapping = 30.0 would change the result and is not supported (only None)",
    ),
    "another layer type": (
        config(**QWEN, layer_types=["chunked_attention"] * 2),
        "layer type 'chunked_attention' is not supported: sliding_attention or full_attention",
    ),
    "too few layer types": (
        config(**QWEN, layer_types=["full_attention"]),
        "layer_types has 1 entries for 2 layers: one per layer is needed",
    ),
    "layer types as text": (
        config(**QWEN, layer_types="full"),
        "layer_types has 'full' for 2 layers: one per layer is needed",
    ),
    "a window of 0": (
        config(architectures=["MistralForCausalLM"], sliding_window=0),
        "sliding_window = 0 is not an integer of at least 1",
    ),
}

CONFIG_FILES = {
    "no config.json": (
        gone("config.json"),
        "MODEL/config.json does not exist: a model folder needs a config.json beside its weights",
    ),
    "half a config.json": (
        cut("config.json", 40),
        "MODEL/config.json is not readable as JSON (Expecting property name",
    ),
    "an empty config.json": (
        file("config.json", ""),
        "MODEL/config.json is not readable as JSON (Expecting value: line 1 column 1 (char 0)): download",
    ),
    "a config.json of bytes": (file("config.json", b"\xff\xfe\x00"), "MODEL/config.json is not readable as JSON ("),
    "a bottomless config.json": (file("config.json", "[" * 100_000), "MODEL/config.json is not readable as JSON ("),
    "a config.json that is a list": (file("config.json", [1]), "MODEL/config.json holds a JSON list, not an object"),
    "a pointer to config.json": (
        file("config.json", POINTER),
        "MODEL/config.json is a Git LFS pointer, not the file itself: run `git lfs pull`",
    ),
}

WEIGHTS = {
    "an empty folder": (
        gone("config.json", "tokenizer.json", "model.safetensors"),
        "MODEL is empty: a model folder holds config.json, model.safetensors and a tokenizer",
    ),
    "no weights": (
        gone("model.safetensors"),
        "MODEL holds no weights (model.safetensors or model.safetensors.index.json), only config.json, tokenizer.json",
    ),
    "pickled weights": (
        both(gone("model.safetensors"), file("pytorch_model.bin", b"x")),
        "MODEL has only pickled weights (pytorch_model.bin), which can run code when read; minfer reads safetensors",
    ),
    "weights of another name": (
        both(gone("model.safetensors"), file("other.safetensors", b"x")),
        "MODEL has neither model.safetensors nor model.safetensors.index.json, but other.safetensors: download",
    ),
    "a truncated header": (
        cut("model.safetensors", 100),
        "MODEL/model.safetensors (100 bytes) is truncated or not a safetensors file",
    ),
    "truncated tensors": (
        cut("model.safetensors", 3000),
        "MODEL/model.safetensors (3000 bytes) is truncated or not a safetensors file",
    ),
    "an empty file": (
        cut("model.safetensors", 0),
        "MODEL/model.safetensors (0 bytes) is truncated or not a safetensors file",
    ),
    "a pointer": (
        file("model.safetensors", POINTER),
        "MODEL/model.safetensors is a Git LFS pointer of 63 bytes, not the file itself: run `git lfs pull`",
    ),
    "a tensor missing": (weights(lambda tensors: tensors.pop(UP)), f"{FIT}1 missing: layers.1.mlp.up_proj.weight"),
    "a tensor too many": (
        weights(lambda tensors: tensors.update({"model.extra.weight": torch.zeros(3)})),
        f"{FIT}1 unexpected: model.extra.weight",
    ),
    "a tensor renamed": (
        weights(move(UP, "model.layers.1.mlp.top.weight")),
        f"{FIT}1 missing: layers.1.mlp.up_proj.weight; 1 unexpected: model.layers.1.mlp.top.weight",
    ),
    "a tensor transposed": (
        weights(lambda tensors: tensors.update({UP: tensors[UP].t().contiguous()})),
        f"{FIT}1 of the wrong shape: {UP} in model.safetensors is (12, 14), not (14, 12)",
    ),
    "no head": (
        weights(lambda tensors: tensors.pop("lm_head.weight")),
        f"{FIT}1 missing: lm_head.weight (tie_word_embeddings is false: is the head tied after all?)",
    ),
    "a head that is tied and differs": (
        config(tie_word_embeddings=True),
        "lm_head.weight in model.safetensors differs from model.embed_tokens.weight in model.safetensors, though",
    ),
    "biases that are not there": (
        config(attention_bias=True),
        f"{FIT}8 missing: layers.0.self_attn.q_proj.bias, layers.0.self_attn.k_proj.bias, ",
    ),
    "more layers than there are": (config(num_hidden_layers=3), f"{FIT}9 missing: layers.2."),
    "another vocabulary": (
        config(vocab_size=12),
        f"{FIT}2 of the wrong shape: model.embed_tokens.weight in model.safetensors is (11, 12), not (12, 12)",
    ),
    "integers": (
        weights(lambda tensors: tensors.update({UP: tensors[UP].to(torch.int8)})),
        "MODEL is a quantised checkpoint, or not of a language model: ",
    ),
    "a shard missing": (shards(lambda folder, index: gone("b.safetensors")(folder)), "MODEL lacks 1 file"),
    "a shard truncated": (
        shards(lambda folder, index: cut("b.safetensors", 50)(folder)),
        "MODEL/b.safetensors (50 bytes) is truncated",
    ),
    "an index without its map": (
        shards(lambda folder, index: index.clear()),
        "MODEL/model.safetensors.index.json is not an index with a weight_map",
    ),
    "an index that leaves the folder": (
        shards(lambda folder, index: index["weight_map"].update({UP: "../b.safetensors"})),
        f"MODEL/model.safetensors.index.json places tensor {UP} in '../b.safetensors', which is not the name",
    ),
    "an index of another download": (
        shards(lambda folder, index: index["weight_map"].update({UP: "a.safetensors"})),
        "MODEL/model.safetensors.index.json names 1 tensor",
    ),
}

TOKENIZERS = {
    "no tokenizer": (
        gone("tokenizer.json"),
        "MODEL holds neither tokenizer.json nor tokenizer.model: no tokenizer to read",
    ),
    "half a tokenizer.json": (cut("tokenizer.json", 30), "MODEL/tokenizer.json is not valid JSON: "),
    "a pointer to tokenizer.json": (
        file("tokenizer.json", POINTER),
        "MODEL/tokenizer.json is a Git-LFS pointer, not the file itself: run `git lfs pull`",
    ),
    "another kind of tokenizer": (
        file("tokenizer.json", {**TOKENIZER, "model": {"type": "New", "vocab": {}}}),
        "MODEL/tokenizer.json is not what the package tokenizers reads: ",
    ),
    "a damaged tokenizer.model": (
        both(gone("tokenizer.json"), file("tokenizer.model", b"junk")),
        "MODEL/tokenizer.model is not a SentencePiece model, or it is damaged: fetch it again",
    ),
    "a first token that has no id": (
        file("tokenizer_config.json", {"bos_token": "<s>", "add_bos_token": True}),
        "the bos_token is '<s>', which is not in the vocabulary: correct tokenizer_config.json",
    ),
    "an end token as text": (
        file("generation_config.json", {"eos_token_id": "x"}),
        "MODEL/generation_config.json: eos_token_id must be a token id or a list of token ids, not 'x'",
    ),
    "a damaged generation_config.json": (
        file("generation_config.json", "{"),
        "MODEL/generation_config.json is not valid JSON: ",
    ),
}

TABLE = [
    *((ConfigError, name, spoil, f"MODEL/config.json: {message}") for name, (spoil, message) in CONFIGS.items()),
    *((ConfigError, name, spoil, message) for name, (spoil, message) in CONFIG_FILES.items()),
    *((CheckpointError, name, spoil, message) for name, (spoil, message) in WEIGHTS.items()),
    *((TokenizerError, name, spoil, message) for name, (spoil, message) in TOKENIZERS.items()),
]


@pytest.fixture(scope="module")
def good(tmp_path_factory):
    return good_folder(tmp_path_factory.mktemp("good"))


@pytest.mark.parametrize(("error", "name", "spoil", "message"), TABLE, ids=[row[1] for row in TABLE])
def test_a_bad_folder_gives_one_clear_line(good, tmp_path, error, name, spoil, message):
    folder = shutil.copytree(good, tmp_path / "model")
    spoil(folder)
    with pytest.raises(error) as caught:
        engine_class(PHASES[0]).load(str(folder), device="cpu")
    told = str(caught.value).replace(str(folder), "MODEL")
    assert type(caught.value) is error
    assert told.startswith(message), told
    assert "\n" not in told
    assert len(told) < 500, "too long to read"


@pytest.mark.parametrize("phase", PHASES)
@pytest.mark.parametrize("name", ["a tensor missing", "a head that is tied and differs"])
def test_every_phase_refuses_it_alike(good, tmp_path, name, phase):
    folder = shutil.copytree(good, tmp_path / "model")
    WEIGHTS[name][0](folder)
    with pytest.raises(CheckpointError) as caught:
        engine_class(phase).load(str(folder), device="cpu")
    assert str(caught.value).replace(str(folder), "MODEL").startswith(WEIGHTS[name][1])


@pytest.mark.parametrize("phase", PHASES)
def test_the_folder_before_it_is_spoilt_loads(good, phase):
    engine = engine_class(phase).load(good, device="cpu")
    assert engine.config.vocab_size == CONFIG["vocab_size"]
    assert len(engine.generate([[3, 4]])[0].prompt_ids) == 2
