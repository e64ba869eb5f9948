"""The embedded model: small enough to ship, an ordinary Hugging Face folder, and trained rather than noise."""

import json
import math
from collections import Counter
from pathlib import Path

import pytest
import sentencepiece
import torch
import torch.nn.functional as F
from transformers import AutoModelForCausalLM, AutoTokenizer

import minfer

ASSETS = Path(minfer.__file__).parent / "assets"
FOLDER = ASSETS / "tiny"
STRANGE_TEXTS = (
    "",
    "KING:\nNow is  the winter\n\n   of our discontent\n",
    "\n\n\tna\u00efve \u65e5\u672c \U0001f642 \U0001f468\u200d\U0001f469\u200d\U0001f467 1603",
    "  two before, two after  ",
    "\r\n\u00a0\ufb01\u212b",  # a normaliser would change each of these
)


@pytest.fixture(scope="module")
def pieces():
    return sentencepiece.SentencePieceProcessor(model_file=str(FOLDER / "tokenizer.model"))


@pytest.fixture(scope="module")
def oracle():
    return AutoModelForCausalLM.from_pretrained(FOLDER, dtype=torch.float32)


@pytest.fixture(scope="module")
def windows(pieces):
    """Seven windows of 256 ids of held-out text, spread over it, each opened by BOS: (7, 256)."""
    ids = pieces.encode((ASSETS / "heldout.txt").read_text(encoding="utf-8"))
    starts = range(0, len(ids) - 254, (len(ids) - 255) // 6)
    return torch.tensor([[pieces.bos_id(), *ids[start : start + 255]] for start in starts])


def test_it_is_a_small_model_in_a_small_folder(oracle):
    assert sum(path.stat().st_size for path in FOLDER.iterdir()) < 10_000_000
    assert 2_000_000 <= oracle.num_parameters() <= 5_000_000
    config = oracle.config
    assert config.num_key_value_heads < config.num_attention_heads, "tiny should have grouped KV heads"
    assert config.tie_word_embeddings


def test_the_folder_holds_only_the_usual_files():
    names = {path.name for path in FOLDER.iterdir()}
    usual = {"config.json", "generation_config.json", "model.safetensors", "tokenizer.model", "tokenizer_config.json"}
    assert names == usual | {"README.md"}


def test_the_tokenizer_gives_every_text_back(pieces):
    for text in STRANGE_TEXTS:
        assert pieces.decode(pieces.encode(text)) == text


def test_the_tokenizer_has_the_ids_that_the_configuration_promises(pieces):
    config = json.loads((FOLDER / "config.json").read_text())
    assert pieces.get_piece_size() == config["vocab_size"]
    assert [pieces.id_to_piece(i) for i in range(3)] == ["<unk>", "<s>", "</s>"]
    assert (config["bos_token_id"], config["eos_token_id"]) == (1, 2)


def test_transformers_reads_the_tokenizer_unchanged(pieces):
    tokenizer = AutoTokenizer.from_pretrained(FOLDER)
    for text in STRANGE_TEXTS:
        if not text.startswith(" "):  # transformers adds no space before a first space; SentencePiece does
            assert tokenizer(text).input_ids == [1, *pieces.encode(text)]


@torch.no_grad()
def losses(oracle, ids):
    """Nats for each token of ids (B, T) but the first, (B, T - 1)."""
    logits = oracle(ids).logits[:, :-1]
    return F.cross_entropy(logits.transpose(1, 2), ids[:, 1:], reduction="none")


def test_its_held_out_loss_is_far_below_what_single_tokens_tell(oracle, windows):
    loss = losses(oracle, windows).mean().item()
    counts = Counter(windows[:, 1:].flatten().tolist())
    total = sum(counts.values())
    unigram = -sum(n / total * math.log(n / total) for n in counts.values())  # the best that any unigram model can do
    assert loss < unigram - 1.0, f"{loss:.3f} nats per token: token frequencies alone give {unigram:.3f}"


def test_distant_context_helps(oracle, windows):
    near, far = losses(oracle, windows[:, -72:])[:, -64:].mean().item(), losses(oracle, windows)[:, -64:].mean().item()
    assert far < near - 0.05, f"the same 64 tokens: {far:.3f} nats after 192 tokens, {near:.3f} after 8"


@torch.no_grad()
def test_minfer_computes_the_same_logits(oracle, windows):
    from minfer.core.attention import CausalAttention
    from minfer.core.checkpoint import Checkpoint
    from minfer.core.model import Transformer

    checkpoint = Checkpoint(FOLDER)
    model = Transformer(checkpoint.config)
    for name, stored in checkpoint.plan(model).items():
        model.get_parameter(name).copy_(stored.read())
    attention = [CausalAttention(window) for window in checkpoint.config.windows]
    positions = torch.arange(windows.shape[1]).expand_as(windows)
    torch.testing.assert_close(model(windows, positions, attention), oracle(windows).logits, atol=1e-3, rtol=1e-4)
