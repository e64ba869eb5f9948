"""Small tokenizer folders of every kind that minfer reads, trained on a few sentences."""

import functools
import io
import json
from pathlib import Path

import sentencepiece
from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

SENTENCES = [
    "The sea was grey, and the wind came over the long grass of the dunes.",
    "  Two spaces begin this line;  and two more stand here.",
    "def add(a, b):\n\treturn a + b  # 12 and 345",
    "Über den Wäldern lag der Nebel; où est la gare? ¿Dónde está?",
    "日本語の文章と、漢字がある。 Тёплый вечер. 안녕하세요 🙂👩‍👩‍👧",
    "<s> </s> <unk> s> </ <s <|im_start|> <|im_end|> are signs that people write about.",
    "He said: the ships are here, the ships are gone, and nobody came to see them.",
] * 3
TRICKY = [
    "",
    " ",
    "   ",
    "\n",
    "a",
    " Hello  world \n\n",
    "tab\tand\r\nreturn",
    "nul\0byte",
    "▁ already marked ▁▁",
    "é 漢 🙂 👩‍👩‍👧 ﷽ \u200f שלום",
    "e\u0301 decomposed, \u00e9 composed",
    "<s>Hello</s> <unk> and <0x41><0x0A>",
    "<|im_start|>user\nhi<|im_end|> <|begin|>",
    "1234567 don't we'll I'M",
    "\ufdd0private\ufdd1 \ufffd \U000f0000",
]
CHATML_TOKENS = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
LLAMA3_SPLIT = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)


def write_folder(folder: Path, files: dict[str, dict | str | bytes]) -> Path:
    """Write each file: a dict as JSON, text and bytes as they are."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, content in files.items():
        data = json.dumps(content) if isinstance(content, dict) else content
        (folder / name).write_bytes(data.encode() if isinstance(data, str) else data)
    return folder


@functools.cache
def sentencepiece_model(kind: str = "bpe", **options) -> bytes:
    """A `tokenizer.model` of at most 420 pieces, by default as Llama 2's: byte fallback, a dummy prefix."""
    settings = {
        "vocab_size": 420,
        "hard_vocab_limit": False,
        "byte_fallback": True,
        "character_coverage": 0.98,
        "normalization_rule_name": "identity",
        "remove_extra_whitespaces": False,
        "split_digits": True,
        "allow_whitespace_only_pieces": True,
        "minloglevel": 2,
        "num_threads": 1,
    }
    out = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(SENTENCES), model_writer=out, model_type=kind, **{**settings, **options}
    )
    return out.getvalue()


@functools.cache
def byte_level_json(style: str) -> str:
    """A `tokenizer.json` like that of "gpt2", "llama3" (BOS by its post-processor) or "qwen" (NFC, tools)."""
    library = Tokenizer(models.BPE(ignore_merges=style == "llama3"))
    byte_level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=style == "gpt2")
    if style == "gpt2":
        library.pre_tokenizer = byte_level
    else:
        split = pre_tokenizers.Split(Regex(LLAMA3_SPLIT), "isolated")
        library.pre_tokenizer = pre_tokenizers.Sequence([split, byte_level])
    if style == "qwen":
        library.normalizer = normalizers.NFC()
    library.decoder = decoders.ByteLevel()
    in_vocabulary = CHATML_TOKENS[:1] if style == "gpt2" else []
    library.train_from_iterator(
        SENTENCES,
        trainers.BpeTrainer(
            vocab_size=420,
            special_tokens=in_vocabulary,
            initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
            show_progress=False,
        ),
    )
    library.post_processor = processors.ByteLevel(trim_offsets=False)
    if style == "llama3":
        library.add_special_tokens(["<|begin|>", "<|eot|>", "<|start_header|>", "<|end_header|>"])
        begin = processors.TemplateProcessing(
            single="<|begin|> $A", special_tokens=[("<|begin|>", library.token_to_id("<|begin|>"))]
        )
        library.post_processor = processors.Sequence([processors.ByteLevel(trim_offsets=False), begin])
    if style == "qwen":
        library.add_special_tokens(CHATML_TOKENS)
        library.add_tokens(["<tool_call>", "</think>"])
    return library.to_str()


@functools.cache
def llama2_json(legacy: bool) -> str:
    """The `tokenizer.json` that belongs to `sentencepiece_model("bpe")`, in the older or newer way of writing it."""
    model = sentencepiece.SentencePieceProcessor(model_proto=sentencepiece_model())
    vocab = {model.id_to_piece(i): i for i in range(len(model))}
    merges = [
        (i, piece[:cut], piece[cut:])
        for piece, i in vocab.items()
        if not (model.is_control(i) or model.is_unknown(i) or model.is_byte(i))
        for cut in range(1, len(piece))
        if piece[:cut] in vocab and piece[cut:] in vocab
    ]
    bpe = models.BPE(
        vocab=vocab,
        merges=[(left, right) for _, left, right in sorted(merges)],
        unk_token="<unk>",
        fuse_unk=True,
        byte_fallback=True,
    )
    library = Tokenizer(bpe)
    if legacy:
        library.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    else:
        library.pre_tokenizer = pre_tokenizers.Metaspace("▁", prepend_scheme="first", split=False)
    library.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    library.add_special_tokens(["<unk>", "<s>", "</s>"])
    library.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 1)])
    return library.to_str()


JSON_KINDS = {
    "gpt2": functools.partial(byte_level_json, "gpt2"),
    "llama3": functools.partial(byte_level_json, "llama3"),
    "qwen": functools.partial(byte_level_json, "qwen"),
    "llama2": functools.partial(llama2_json, False),
    "llama2-legacy": functools.partial(llama2_json, True),
}
MODEL_KINDS = {
    "bpe": functools.partial(sentencepiece_model, "bpe"),
    "unigram": functools.partial(sentencepiece_model, "unigram"),
    "no-dummy-prefix": functools.partial(sentencepiece_model, "bpe", add_dummy_prefix=False),
    "no-extra-spaces": functools.partial(
        sentencepiece_model, "unigram", remove_extra_whitespaces=True, normalization_rule_name="nmt_nfkc"
    ),
}
ALL_KINDS = [*JSON_KINDS, *MODEL_KINDS]


def folder_of(kind: str, root: Path) -> Path:
    """A folder with the vocabulary of this kind and nothing else."""
    if kind in JSON_KINDS:
        return write_folder(root / kind, {"tokenizer.json": JSON_KINDS[kind]()})
    return write_folder(root / kind, {"tokenizer.model": MODEL_KINDS[kind]()})


class Library:
    """The oracle of a kind: the library that its file belongs to, taking text as text."""

    def __init__(self, kind: str) -> None:
        self.kind = kind
        if kind in JSON_KINDS:
            self.tokenizer = Tokenizer.from_str(JSON_KINDS[kind]())
            self.tokenizer.encode_special_tokens = True
        else:
            self.tokenizer = sentencepiece.SentencePieceProcessor(model_proto=MODEL_KINDS[kind]())

    def encode(self, text: str) -> list[int]:
        """Without BOS and EOS."""
        if self.kind in JSON_KINDS:
            return self.tokenizer.encode(text, add_special_tokens=False).ids
        return self.tokenizer.encode(text)

    def decode(self, ids: list[int]) -> str:
        """Without control tokens. sentencepiece must not see them: it would end a character at each of them."""
        if self.kind in JSON_KINDS:
            return self.tokenizer.decode(ids)
        model = self.tokenizer
        return model.decode([i for i in ids if not model.is_control(i) and not model.is_unknown(i)])
