"""What `transformers` answers: the models that both sides load, and its greedy tokens and logits."""

import json
from pathlib import Path

import torch
from tokenizers import Tokenizer as HubTokenizer
from tokenizers.models import WordLevel
from transformers import CONFIG_MAPPING, AutoModelForCausalLM
from transformers.utils import logging

from tests.parity.answer import Answer
from tests.parity.exact import exact

logging.set_verbosity_error()
logging.disable_progress_bar()


def save_model(facts: dict, folder: Path, seed: int = 0, words: int = 0, **saving) -> Path:
    """A seeded model of these facts with a tokenizer of `words` words (default: as many as the model's vocabulary)."""
    config = CONFIG_MAPPING[facts["model_type"]](**_copied(facts))
    model = AutoModelForCausalLM.from_config(config, dtype=torch.float64)
    _randomise(model, seed)
    model.save_pretrained(folder, **saving)
    (folder / "config.json").write_text(json.dumps(facts))  # as the facts spell it, not as this version saves it
    (folder / "generation_config.json").unlink(missing_ok=True)
    vocab = {f"w{i}": i for i in range(words or facts["vocab_size"])}
    HubTokenizer(WordLevel(vocab, unk_token="w0")).save(str(folder / "tokenizer.json"))
    return folder


@torch.no_grad()
def _randomise(model: torch.nn.Module, seed: int) -> None:
    """Weights large enough that every part of the model moves the logits, and greedy decoding does not loop at once."""
    generator = torch.Generator().manual_seed(seed)
    for name, parameter in model.named_parameters():
        noise = torch.randn(parameter.shape, generator=generator, dtype=parameter.dtype)
        if "norm" in name or ".ln_" in name:
            parameter.copy_(0.1 * noise if name.endswith("bias") else 1 + 0.4 * noise)
        elif parameter.dim() == 1:
            parameter.copy_(0.4 * noise)
        elif "wpe" in name:
            parameter.copy_(noise)
        elif "embed" in name or "wte" in name:
            parameter.copy_(0.4 * noise)
        else:
            parameter.copy_(2.5 * noise * min(parameter.shape) ** -0.5)


def load_exact(folder: Path):
    """The model computed in float64 throughout, attention written out."""
    with exact():
        return AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float64, attn_implementation="eager").eval()


def greedy(model, prompt_ids: list[int], max_tokens: int, eos_token_ids: list[int] | None = None) -> Answer:
    """The tokens that `generate` takes, and the raw logits of each step."""
    made = model.generate(
        torch.tensor([prompt_ids]),
        attention_mask=torch.ones(1, len(prompt_ids), dtype=torch.int64),
        max_new_tokens=max_tokens,
        do_sample=False,
        eos_token_id=eos_token_ids,
        pad_token_id=0,
        output_logits=True,
        return_dict_in_generate=True,
    )
    return Answer(made.sequences[0, len(prompt_ids) :].tolist(), torch.cat(made.logits))


def _copied(facts: dict) -> dict:
    return json.loads(json.dumps(facts))  # transformers writes into the dicts that it is given
