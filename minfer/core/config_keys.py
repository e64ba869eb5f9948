"""Which keys of a `config.json` minfer honours, which change nothing, and which it must refuse.

Source of the defaults: the configuration classes of `transformers` 5.24, one per architecture.
"""

from typing import Any

_LLAMA: dict[str, Any] = {
    "vocab_size": 32000,
    "hidden_size": 4096,
    "intermediate_size": 11008,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "hidden_act": "silu",
    "max_position_embeddings": 2048,
    "rms_norm_eps": 1e-6,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "tie_word_embeddings": False,
}
_QWEN = {
    **{key: value for key, value in _LLAMA.items() if not key.endswith("_token_id")},
    "vocab_size": 151936,
    "intermediate_size": 22016,
    "num_key_value_heads": 32,
    "max_position_embeddings": 32768,
    "sliding_window": 4096,
    "max_window_layers": 28,
}

DEFAULTS: dict[str, dict[str, Any]] = {
    "LlamaForCausalLM": _LLAMA,
    "MistralForCausalLM": {
        **_LLAMA,
        "intermediate_size": 14336,
        "num_key_value_heads": 8,
        "max_position_embeddings": 131072,
        "sliding_window": 4096,
    },
    "Qwen2ForCausalLM": _QWEN,
    "Qwen3ForCausalLM": {**_QWEN, "head_dim": 128},
    "GPT2LMHeadModel": {
        "vocab_size": 50257,
        "n_positions": 1024,
        "n_embd": 768,
        "n_layer": 12,
        "n_head": 12,
        "activation_function": "gelu_new",
        "layer_norm_epsilon": 1e-5,
        "bos_token_id": 50256,
        "eos_token_id": 50256,
        "tie_word_embeddings": True,
    },
}
"""Architecture -> what an absent key means. Its keys are the architectures that minfer runs."""

MODEL_TYPES = {
    "llama": "LlamaForCausalLM",
    "mistral": "MistralForCausalLM",
    "qwen2": "Qwen2ForCausalLM",
    "qwen3": "Qwen3ForCausalLM",
    "gpt2": "GPT2LMHeadModel",
}
"""`model_type` -> architecture, for files that do not name theirs."""

NULLABLE = {"bos_token_id", "eos_token_id", "head_dim", "num_key_value_heads", "sliding_window"}
"""Keys whose null says something: none at all, or as many as follow from the others. Elsewhere null is absent."""

GPT2_NAMES = {
    "n_positions": "max_position_embeddings",
    "n_embd": "hidden_size",
    "n_layer": "num_hidden_layers",
    "n_head": "num_attention_heads",
    "n_inner": "intermediate_size",
    "activation_function": "hidden_act",
    "layer_norm_epsilon": "rms_norm_eps",
}

_COMMON = {"architectures", "model_type", "vocab_size", "bos_token_id", "eos_token_id", "tie_word_embeddings"}
_COMMON |= {"dtype", "torch_dtype"}
_LLAMA_LIKE = _COMMON | {
    "hidden_size",
    "intermediate_size",
    "num_hidden_layers",
    "num_attention_heads",
    "num_key_value_heads",
    "head_dim",
    "hidden_act",
    "max_position_embeddings",
    "rms_norm_eps",
    "attention_bias",
    "mlp_bias",
    "rope_theta",
    "rope_scaling",
    "rope_parameters",
    "original_max_position_embeddings",
}
_SLIDING = {"sliding_window", "layer_types"}
_QWEN_SLIDING = _SLIDING | {"use_sliding_window", "max_window_layers"}

HONOURED: dict[str, set[str]] = {
    "LlamaForCausalLM": _LLAMA_LIKE,
    "MistralForCausalLM": _LLAMA_LIKE | _SLIDING,
    "Qwen2ForCausalLM": _LLAMA_LIKE | _QWEN_SLIDING,
    "Qwen3ForCausalLM": _LLAMA_LIKE | _QWEN_SLIDING,
    "GPT2LMHeadModel": _COMMON | GPT2_NAMES.keys() | set(GPT2_NAMES.values()),
}

HARMLESS = {
    *("transformers_version", "_name_or_path", "use_cache", "pad_token_id", "initializer_range", "auto_map"),
    *("attention_dropout", "hidden_dropout", "resid_pdrop", "embd_pdrop", "attn_pdrop", "dropout"),
    *("summary_type", "summary_use_proj", "summary_activation", "summary_proj_to_labels"),
    *("summary_first_dropout", "task_specific_params", "n_ctx", "id2label", "label2id", "output_attentions"),
    *("output_hidden_states", "return_dict", "torchscript", "chunk_size_feed_forward", "is_encoder_decoder"),
    *("problem_type", "finetuning_task", "gradient_checkpointing", "reorder_and_upcast_attn", "unk_token_id"),
    *("is_llama_config", "transformers.js_config", "unsloth_fixed", "max_sequence_length"),
    *("num_labels", "_attn_implementation", "use_return_dict", "eos_token", "bos_token", "pretraining_tp"),
    *("use_bfloat16", "tf_legacy_loss", "cross_attention_hidden_size", "tie_encoder_decoder", "tokenizer_class"),
    *("decoder_start_token_id", "sep_token_id", "prefix", "unsloth_version", "output_scores"),
    *("max_length", "min_length", "do_sample", "early_stopping", "num_beams", "num_beam_groups", "temperature"),
    *("diversity_penalty", "top_k", "top_p", "typical_p", "repetition_penalty", "length_penalty", "bad_words_ids"),
    *("no_repeat_ngram_size", "encoder_no_repeat_ngram_size", "num_return_sequences", "return_dict_in_generate"),
    *("forced_bos_token_id", "forced_eos_token_id", "remove_invalid_values", "exponential_decay_length_penalty"),
    *("suppress_tokens", "begin_suppress_tokens"),
}
"""Keys that do not touch the logits: training and bookkeeping facts, and generation defaults, which older files keep
here and which minfer takes from the request alone."""

NEUTRAL: dict[str, tuple[Any, ...]] = {
    "partial_rotary_factor": (None, 1.0, 1),
    "rope_interleaved": (None, False),
    "quantization_config": (None,),
    "attn_logit_softcapping": (None,),
    "final_logit_softcapping": (None,),
    "query_pre_attn_scalar": (None,),
    "attention_multiplier": (None, 1.0),
    "embedding_multiplier": (None, 1.0),
    "residual_multiplier": (None, 1.0),
    "logits_scaling": (None, 1.0),
    "logit_scale": (None, 1.0),
    "clip_qkv": (None,),
    "num_experts": (None, 0),
    "num_local_experts": (None, 0),
    "no_rope_layers": (None, []),
    "use_mrope": (None, False),
    "use_qk_norm": (None, False),
    "scale_attn_weights": (None, True),
    "scale_attn_by_inverse_layer_idx": (None, False),
    "add_cross_attention": (None, False),
    "is_decoder": (None, True, False),
    "pruned_heads": (None, {}),
}
"""Keys that would change the result: only these values are the same as absent."""
