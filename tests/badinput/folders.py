"""A small model folder that loads, and ways to spoil it."""

import json
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file

from minfer.core.config import ModelConfig
from minfer.core.model import Transformer

CONFIG = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "vocab_size": 11,
    "hidden_size": 12,
    "intermediate_size": 14,
    "num_hidden_layers": 2,
    "num_attention_heads": 3,
    "num_key_value_heads": 1,
    "max_position_embeddings": 16,
    "rms_norm_eps": 1e-5,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
WORDS = {"type": "WordLevel", "vocab": {f"w{i}": i for i in range(9)}, "unk_token": "w0"}
TOKENIZER = {"version": "1.0", "model": WORDS, "added_tokens": [], "decoder": None, "pre_tokenizer": None}
TOKENIZER |= {"normalizer": None, "post_processor": None, "truncation": None, "padding": None}


def good_folder(folder: Path) -> Path:
    """Write the model."""
    folder.mkdir(parents=True, exist_ok=True)
    torch.manual_seed(0)
    model = Transformer(ModelConfig.from_dict(CONFIG))
    weights = {name if name == "lm_head.weight" else f"model.{name}": w.data for name, w in model.named_parameters()}
    save_file(weights, folder / "model.safetensors")
    write(folder, "config.json", CONFIG)
    write(folder, "tokenizer.json", TOKENIZER)
    return folder


def write(folder: Path, name: str, content) -> None:
    """A file of bytes, of text, or of JSON."""
    if isinstance(content, bytes):
        (folder / name).write_bytes(content)
    else:
        (folder / name).write_text(content if isinstance(content, str) else json.dumps(content), encoding="utf-8")


def config(**facts):
    """A spoiler that changes facts of config.json."""
    return lambda folder: write(folder, "config.json", {**CONFIG, **facts})


def file(name: str, content):
    """A spoiler that writes a file."""
    return lambda folder: write(folder, name, content)


def gone(*names: str):
    """A spoiler that deletes files."""
    return lambda folder: [(folder / name).unlink() for name in names]


def cut(name: str, to: int):
    """A spoiler that truncates a file."""
    return lambda folder: write(folder, name, (folder / name).read_bytes()[:to])


def weights(change):
    """A spoiler that changes the dict of tensors."""

    def spoil(folder: Path) -> None:
        tensors = load_file(folder / "model.safetensors")
        change(tensors)
        save_file(tensors, folder / "model.safetensors")

    return spoil


def shards(index_change):
    """A spoiler that splits the weights over two files and changes their index."""

    def spoil(folder: Path) -> None:
        tensors = load_file(folder / "model.safetensors")
        (folder / "model.safetensors").unlink()
        names = sorted(tensors)
        halves = {"a.safetensors": names[:5], "b.safetensors": names[5:]}
        for file_name, half in halves.items():
            save_file({name: tensors[name] for name in half}, folder / file_name)
        index = {"weight_map": {name: file_name for file_name, half in halves.items() for name in half}}
        index_change(folder, index)
        write(folder, "model.safetensors.index.json", index)

    return spoil


def both(*spoilers):
    """Several spoilers, one after another."""
    return lambda folder: [spoil(folder) for spoil in spoilers]
