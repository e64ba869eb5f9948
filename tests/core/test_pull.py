"""Pulling: the numbers of a GGUF, its tokenizer, and a cache that holds whole models or nothing. No download."""

import errno
import hashlib
import io
import json
import os
import shutil
import subprocess
import sys
import time
import zipfile
from pathlib import Path
from types import SimpleNamespace

import gguf
import huggingface_hub
import numpy as np
import pytest
import torch
from gguf import GGMLQuantizationType as Quant
from rich.console import Console
from rich.progress import Progress
from safetensors.torch import load, load_file, save
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import AutoTokenizer, LlamaConfig, LlamaForCausalLM

from minfer.core.errors import CheckpointError, ConfigError, MinferError, MissingExtra
from minfer.core.hub import pull as pull_module
from minfer.core.hub import resolve
from minfer.core.hub import wheel as wheel_module
from minfer.core.hub.gguf_convert import convert_gguf
from minfer.core.hub.pull import pull
from minfer.core.hub.wheel import WheelModel
from minfer.core.tokenizer import load_tokenizer

CONTROL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
MERGES = [("Ġ", "t"), ("h", "e"), ("Ġt", "he"), ("i", "n"), ("1", "2"), ("Ġ", "Ġ")]
CHAT = "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
SHAPE = {
    "hidden_size": 96,
    "intermediate_size": 160,
    "num_hidden_layers": 2,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "max_position_embeddings": 64,
    "rope_theta": 100000.0,
    "rms_norm_eps": 1e-5,
    "tie_word_embeddings": True,
}
GGUF_NAMES = {
    "model.embed_tokens.": "token_embd.",
    "model.norm.": "output_norm.",
    "model.layers.": "blk.",
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}


def pieces() -> list[str]:
    """The control tokens, the alphabet of bytes, the merged pieces: in the order of their ids."""
    return [*CONTROL, *sorted(pre_tokenizers.ByteLevel.alphabet()), *("".join(merge) for merge in MERGES)]


@pytest.fixture(scope="module")
def oracle() -> LlamaForCausalLM:
    torch.manual_seed(0)
    return LlamaForCausalLM(LlamaConfig(vocab_size=len(pieces()), **SHAPE)).eval()


def neighbours(weight: np.ndarray, heads: int) -> np.ndarray:
    """llama.cpp's order of query and key rows: what was i and i + d/2 of a head stands at 2i and 2i + 1."""
    head_dim = weight.shape[0] // heads
    rows = [h * head_dim + i % 2 * (head_dim // 2) + i // 2 for h in range(heads) for i in range(head_dim)]
    return weight[rows]


def write_gguf(path: Path, oracle: LlamaForCausalLM, matrices: Quant = Quant.F32, **facts: str) -> Path:
    """The oracle as llama.cpp would store it: matrices in the given format, norms in float32."""
    writer = gguf.GGUFWriter(path, facts.get("architecture", "llama"))
    writer.add_block_count(SHAPE["num_hidden_layers"])
    writer.add_context_length(SHAPE["max_position_embeddings"])
    writer.add_embedding_length(SHAPE["hidden_size"])
    writer.add_feed_forward_length(SHAPE["intermediate_size"])
    writer.add_head_count(SHAPE["num_attention_heads"])
    writer.add_head_count_kv(SHAPE["num_key_value_heads"])
    writer.add_rope_dimension_count(SHAPE["head_dim"])
    writer.add_rope_freq_base(SHAPE["rope_theta"])
    writer.add_layer_norm_rms_eps(SHAPE["rms_norm_eps"])
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre(facts.get("pre", "smollm"))
    writer.add_token_list(pieces())
    writer.add_token_types([3] * len(CONTROL) + [1] * (len(pieces()) - len(CONTROL)))
    writer.add_token_merges([" ".join(merge) for merge in MERGES])
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_unk_token_id(0)
    writer.add_pad_token_id(2)
    writer.add_add_bos_token(False)
    writer.add_chat_template(CHAT)
    for name, parameter in oracle.named_parameters():
        weight = parameter.detach().numpy()
        if "q_proj" in name or "k_proj" in name:
            weight = neighbours(weight, SHAPE["num_attention_heads" if "q_proj" in name else "num_key_value_heads"])
        for ours, theirs in GGUF_NAMES.items():
            name = name.replace(ours, theirs)
        kind = matrices if weight.ndim == 2 else Quant.F32
        writer.add_tensor(name, gguf.quants.quantize(weight, kind), raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


@pytest.fixture(scope="module")
def converted(oracle, tmp_path_factory) -> Path:
    work = tmp_path_factory.mktemp("converted")
    (work / "model").mkdir()
    convert_gguf(write_gguf(work / "model.gguf", oracle), work / "model")
    return work / "model"


class TestConvertedWeights:
    """A GGUF written by llama.cpp's rules becomes the Hugging Face model that it was made of."""

    def test_every_number_is_back_in_its_place(self, converted, oracle):
        ours = load_file(converted / "model.safetensors")
        theirs = dict(oracle.named_parameters())
        assert ours.keys() == theirs.keys()
        for name, weight in theirs.items():
            assert torch.equal(ours[name], weight), name

    def test_transformers_answers_alike(self, converted, oracle):
        ids = torch.arange(20)[None] * 7 % len(pieces())
        again = LlamaForCausalLM.from_pretrained(converted)
        assert again.config.tie_word_embeddings
        with torch.no_grad():
            assert torch.equal(again(ids).logits, oracle(ids).logits)

    def test_config(self, converted):
        facts = json.loads((converted / "config.json").read_text())
        assert SHAPE.items() <= facts.items()
        assert facts["rms_norm_eps"] == 1e-5  # not 9.999999747378752e-06
        assert (facts["vocab_size"], facts["torch_dtype"]) == (len(pieces()), "float32")
        ends = json.loads((converted / "generation_config.json").read_text())
        assert ends == {"bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 2}

    def test_an_untied_head(self, tmp_path):
        untied = LlamaForCausalLM(LlamaConfig(vocab_size=len(pieces()), **(SHAPE | {"tie_word_embeddings": False})))
        GGUF_NAMES["lm_head."] = "output."
        try:
            write_gguf(tmp_path / "x.gguf", untied)
        finally:
            del GGUF_NAMES["lm_head."]
        convert_gguf(tmp_path / "x.gguf", tmp_path)
        assert json.loads((tmp_path / "config.json").read_text())["tie_word_embeddings"] is False
        assert torch.equal(load_file(tmp_path / "model.safetensors")["lm_head.weight"], untied.lm_head.weight)

    @pytest.mark.parametrize("kind", [Quant.Q4_1, Quant.Q8_0])
    def test_quantised_values_are_exact_in_float32(self, oracle, tmp_path, kind):
        path = write_gguf(tmp_path / "x.gguf", oracle, kind)
        convert_gguf(path, tmp_path)
        ours = load_file(tmp_path / "model.safetensors")["model.layers.1.mlp.down_proj.weight"]
        (stored,) = [t for t in gguf.GGUFReader(path).tensors if t.name == "blk.1.ffn_down.weight"]
        blocks = stored.data.reshape(-1, {Quant.Q4_1: 20, Quant.Q8_0: 34}[kind])
        scale = blocks[:, :2].copy().view(np.float16).astype(np.float64)
        if kind == Quant.Q4_1:  # 16 bytes: the low halves are numbers 0 to 15 of the block, the high ones 16 to 31
            minimum = blocks[:, 2:4].copy().view(np.float16).astype(np.float64)
            exact = scale * np.concatenate([blocks[:, 4:] & 15, blocks[:, 4:] >> 4], axis=1) + minimum
        else:
            exact = scale * blocks[:, 2:].copy().view(np.int8)
        assert np.array_equal(ours.double().numpy(), exact.reshape(ours.shape))
        theirs = oracle.model.layers[1].mlp.down_proj.weight
        assert (ours - theirs).abs().max() < 0.01 < theirs.abs().max()

    def test_progress_ends_at_one(self, oracle, tmp_path):
        seen: list[float] = []
        convert_gguf(write_gguf(tmp_path / "x.gguf", oracle), tmp_path, seen.append)
        assert seen == sorted(seen)
        assert len(seen) > 10
        assert seen[-1] == 1.0

    @pytest.mark.parametrize(
        ("facts", "expected"),
        [({"architecture": "qwen2"}, "general.architecture = 'qwen2'"), ({"pre": "llama-bpe"}, "'llama-bpe'")],
    )
    def test_what_cannot_be_converted_is_refused(self, oracle, tmp_path, facts, expected):
        with pytest.raises(CheckpointError, match=expected):
            convert_gguf(write_gguf(tmp_path / "x.gguf", oracle, **facts), tmp_path)
        assert not (tmp_path / "config.json").exists()

    def test_an_unknown_tensor_is_refused(self, oracle, tmp_path, monkeypatch):
        monkeypatch.setitem(GGUF_NAMES, "mlp.down_proj", "ffn_odd")
        with pytest.raises(CheckpointError, match=r"GGUF tensor 'blk\.0\.ffn_odd\.weight'"):
            convert_gguf(write_gguf(tmp_path / "x.gguf", oracle), tmp_path)


TEXTS = [
    "the then  in  the end",
    "In 1912, it's 12 o'clock; we'll pay 1,234.50!",
    "\n\n  def f(x):\n\treturn x\r\n",
    "naïve — 你好 🙂 ٣٤ ½",
    " leading and trailing ",
    "",
]


class TestConvertedTokenizer:
    """tokenizer.json splits as SmolLM's tokenizer does: each digit alone, then GPT-2's pattern."""

    @pytest.fixture
    def reference(self) -> Tokenizer:
        """Built from the parts of the package, not read from the file."""
        vocab = {piece: i for i, piece in enumerate(pieces())}
        tokenizer = Tokenizer(models.BPE(vocab, MERGES))
        digits, split = pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)
        tokenizer.pre_tokenizer = pre_tokenizers.Sequence([digits, split])
        tokenizer.decoder = decoders.ByteLevel()
        tokenizer.add_special_tokens(CONTROL)
        return tokenizer

    @pytest.mark.parametrize("text", TEXTS)
    def test_ids_and_round_trip(self, converted, reference, text):
        ours = load_tokenizer(converted)
        ids = reference.encode(text).ids
        assert ours.encode(text) == ids
        assert AutoTokenizer.from_pretrained(converted)(text)["input_ids"] == ids
        assert ours.decode(ids) == text

    def test_digits_stand_alone(self, converted):
        ours = load_tokenizer(converted)
        assert [ours.decode([i]) for i in ours.encode("12 the")] == ["1", "2", " the"]

    def test_control_tokens(self, converted):
        ours = load_tokenizer(converted)
        assert ours.encode("".join(CONTROL), parse_special=True) == [0, 1, 2]
        assert ours.special_ids == {0, 1, 2}
        alone = Tokenizer.from_file(str(converted / "tokenizer.json"))  # without the files beside it
        assert alone.encode("".join(CONTROL)).ids == [0, 1, 2]
        assert alone.decode([0, 1, 2]) == ""
        assert (ours.bos_token_id, ours.eos_token_ids) == (None, (2,))
        chat = ours.apply_chat_template([{"role": "user", "content": "the"}], add_generation_prompt=False)
        assert ours.decode(chat, skip_special_tokens=False) == "<|im_start|>user\nthe<|im_end|>\n"


@pytest.fixture
def cache(tmp_path, monkeypatch) -> Path:
    monkeypatch.setenv("MINFER_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    for name in ("PIP_EXTRA_INDEX_URL", "PIP_INDEX_URL", "PIP_CONSTRAINT"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path / "index"))
    return tmp_path / "cache"


@pytest.fixture
def fake_wheel(cache, oracle, tmp_path, monkeypatch) -> Path:
    """A wheel that carries a small GGUF, in the only place where pip looks; `pull("fake")` means it."""
    folder = tmp_path / "index"
    folder.mkdir()
    info = "minfer_fake_model-0.1.dist-info"
    wheel = folder / "minfer_fake_model-0.1-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.write(write_gguf(tmp_path / "x.gguf", oracle, Quant.Q8_0), "minfer_fake_model/x.gguf")
        archive.writestr(f"{info}/METADATA", "Metadata-Version: 2.1\nName: minfer-fake-model\nVersion: 0.1\n")
        archive.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        archive.writestr(f"{info}/RECORD", "")
    model = WheelModel(
        package="minfer-fake-model",
        version="0.1",
        sha256=hashlib.sha256(wheel.read_bytes()).hexdigest(),
        gguf_file="minfer_fake_model/x.gguf",
        wheel_size=wheel.stat().st_size,
        space_needed=5_000_000,
    )
    monkeypatch.setitem(wheel_module.WHEEL_MODELS, "fake", model)
    return wheel


def quiet() -> Progress:
    return Progress(console=Console(file=io.StringIO(), width=60))


def said(progress: Progress) -> str:
    return progress.console.file.getvalue()


def interrupt(*arguments: object, **named: object) -> None:
    raise KeyboardInterrupt


def must_not_run(*arguments: object) -> None:
    raise AssertionError("this should not have been reached")


def fill_disk(*arguments: object, **named: object) -> None:
    raise OSError(errno.ENOSPC, "No space left on device")


def left_in(cache: Path) -> list[str]:
    return sorted(path.name for path in cache.iterdir()) if cache.exists() else []


@pytest.fixture
def at_hand(fake_wheel, monkeypatch) -> Path:
    """The same without pip, which takes a second to start."""

    def copy(model: WheelModel, folder: Path, on_progress: object) -> Path:
        folder.mkdir()
        return Path(shutil.copy(fake_wheel, folder))

    monkeypatch.setattr(wheel_module, "_download", copy)
    return fake_wheel


class TestPullByPip:
    """Through the real pip, from a folder in place of an index."""

    def test_the_model_is_there_and_loads(self, cache, fake_wheel):
        progress = quiet()
        folder = pull("fake", progress=progress)
        assert folder == cache / "fake" == resolve("fake")
        files = [
            "config.json",
            "generation_config.json",
            "model.safetensors",
            "tokenizer.json",
            "tokenizer_config.json",
        ]
        assert sorted(file.name for file in folder.iterdir()) == files
        assert left_in(cache) == ["fake"]
        assert len({file.stat().st_mode for file in folder.iterdir()}) == 1  # whoever reads one reads all
        assert f"fake is at {folder}" in said(progress)
        assert all(task.finished for task in progress.tasks)
        assert len(progress.tasks) == 2

    def test_pip_finds_nothing(self, cache, fake_wheel):
        fake_wheel.unlink()
        with pytest.raises(CheckpointError, match=r"could not download minfer-fake-model==0\.1: ERROR: .*network") as e:
            pull("fake", progress=quiet())
        assert "\n" not in str(e.value)
        assert left_in(cache) == []

    def test_no_pip(self, cache, fake_wheel, monkeypatch):
        monkeypatch.setattr(wheel_module.PathFinder, "find_spec", lambda name: None)
        with pytest.raises(CheckpointError, match=r"needs pip, which .* lacks: run `python -m ensurepip`"):
            pull("fake", progress=quiet())
        assert left_in(cache) == []

    def test_to_look_for_pip_is_not_to_import_it(self, cache, fake_wheel, monkeypatch):
        """Once pip is looked for as what is imported is, setuptools cannot be imported, and so nothing be compiled."""
        asked = []
        finder = SimpleNamespace(find_spec=lambda name, *where: asked.append(name))
        monkeypatch.setattr(sys, "meta_path", [finder, *sys.meta_path])
        pull("fake", progress=quiet())
        assert "pip" not in asked

    def test_control_c_while_pip_runs_ends_pip(self, cache, fake_wheel, monkeypatch):
        started = []
        popen = subprocess.Popen
        long = [sys.executable, "-c", "import time; time.sleep(1000)"]  # pip could be done before it is looked at
        monkeypatch.setattr(subprocess, "Popen", lambda asked, **k: started.append(popen(long, **k)) or started[-1])
        monkeypatch.setattr(time, "sleep", interrupt)
        with pytest.raises(KeyboardInterrupt):
            pull("fake", progress=quiet())
        assert started[0].returncode is not None
        assert left_in(cache) == []


class TestCacheHoldsWholeModelsOrNothing:
    """Whatever goes wrong, and whoever else is at work."""

    def test_a_second_pull_only_says_so(self, cache, at_hand, monkeypatch):
        pull("fake", progress=quiet())
        monkeypatch.setattr(pull_module, "fetch_gguf", must_not_run)
        progress = quiet()
        assert pull("fake", progress=progress) == cache / "fake"
        assert f"fake is already at {cache / 'fake'}" in said(progress)

    def test_a_damaged_model_is_not_taken_for_one(self, cache, at_hand):
        (pull("fake", progress=quiet()) / "model.safetensors").unlink()
        with pytest.raises(CheckpointError, match=r"holds no weights.*to fetch it again, remove .*fake first"):
            pull("fake", progress=quiet())

    def test_a_wrong_checksum(self, cache, at_hand):
        at_hand.write_bytes(at_hand.read_bytes() + b" ")
        wrong = hashlib.sha256(at_hand.read_bytes()).hexdigest()
        with pytest.raises(CheckpointError, match=rf"any\.whl has sha256 {wrong}, expected .*damaged or altered"):
            pull("fake", progress=quiet())
        assert left_in(cache) == []

    def test_no_gguf_package(self, cache, at_hand, monkeypatch):
        monkeypatch.setitem(sys.modules, "gguf", None)
        monkeypatch.setattr(pull_module, "fetch_gguf", must_not_run)  # it is not even begun
        with pytest.raises(MissingExtra, match=r"pip install 'minfer\[gguf\]'"):
            pull("fake", progress=quiet())
        assert left_in(cache) == []

    @pytest.mark.parametrize("where", ["minfer.core.hub.pull.convert_gguf", "minfer.core.hub.gguf_convert.save_file"])
    def test_a_full_disk(self, cache, at_hand, monkeypatch, where):
        monkeypatch.setattr(where, fill_disk)
        with pytest.raises(
            CheckpointError, match=r"could not write fake to .*cache .* MB free\).*No space.*MINFER_HOME"
        ):
            pull("fake", progress=quiet())
        assert left_in(cache) == []

    def test_a_disk_that_would_be_full_is_noticed_first(self, cache, at_hand, monkeypatch):
        monkeypatch.setattr(shutil, "disk_usage", lambda path: shutil._ntuple_diskusage(10**9, 10**9, 4_000_000))
        monkeypatch.setattr(pull_module, "fetch_gguf", must_not_run)
        with pytest.raises(CheckpointError, match=r"\(4 MB free\).* 5 MB are needed"):
            pull("fake", progress=quiet())

    @pytest.mark.parametrize("where", ["minfer.core.hub.gguf_convert.save_file", "minfer.core.hub.wheel._check_sha256"])
    def test_control_c_leaves_nothing(self, cache, at_hand, monkeypatch, where):
        monkeypatch.setattr(where, interrupt)
        with pytest.raises(KeyboardInterrupt):
            pull("fake", progress=quiet())
        assert left_in(cache) == []

    def test_of_two_pulls_at_once_the_first_to_end_wins(self, cache, at_hand, monkeypatch):
        def overtaken(source: Path, folder: Path, on_progress: object) -> None:
            convert_gguf(source, folder)
            shutil.copytree(folder, cache / "fake")
            (cache / "fake" / "README").write_text("the other one's")

        monkeypatch.setattr(pull_module, "convert_gguf", overtaken)
        assert (pull("fake", progress=quiet()) / "README").exists()
        assert left_in(cache) == ["fake"]

    def test_a_folder_in_the_way(self, cache, at_hand):
        (cache / "fake").mkdir(parents=True)
        (cache / "fake" / "thesis.tex").write_text("precious")
        with pytest.raises(CheckpointError, match=r"fake is in the way and holds no model"):
            pull("fake", progress=quiet())
        assert (cache / "fake" / "thesis.tex").read_text() == "precious"
        assert left_in(cache) == ["fake"]

    def test_leftovers_of_killed_pulls_are_cleared_after_a_day(self, cache, at_hand):
        for name, age in (("old", 30 * 3600), ("new", 60)):
            (cache / f".pull-{name}").mkdir(parents=True)
            os.utime(cache / f".pull-{name}", (time.time() - age,) * 2)
        pull("fake", progress=quiet())
        assert left_in(cache) == [".pull-new", "fake"]

    @pytest.mark.parametrize(
        "name", ["", "../x", "a/b/c", "/etc", "a b", ".hidden", "org/", "org/../x", "tiny", "gpt5"]
    )
    def test_names_that_cannot_be_pulled(self, cache, name):
        with pytest.raises(CheckpointError, match=r"smollm2.* or ORG/NAME"):
            pull(name, progress=quiet())
        assert left_in(cache) == []


class Hub:
    """A stand-in for the Hugging Face hub with one repository; remembers what was asked for."""

    def __init__(self, files: dict[str, bytes]) -> None:
        self.files, self.asked, self.error = files, [], None

    def snapshot_download(self, repo_id: str, *, local_dir: Path, allow_patterns: list, ignore_patterns: list) -> str:
        if self.error is not None:
            raise self.error
        chosen = huggingface_hub.utils.filter_repo_objects(
            self.files, allow_patterns=allow_patterns, ignore_patterns=ignore_patterns
        )
        for name in chosen:
            self.asked.append(name)
            (Path(local_dir) / name).parent.mkdir(parents=True, exist_ok=True)
            (Path(local_dir) / name).write_bytes(self.files[name])
        (Path(local_dir) / ".cache" / "huggingface").mkdir(parents=True, exist_ok=True)
        return str(local_dir)


@pytest.fixture
def hub(cache, converted, monkeypatch) -> Hub:
    others = "pytorch_model.bin model.gguf consolidated.safetensors original/x.safetensors onnx/config.json README.md"
    files = {file.name: file.read_bytes() for file in converted.iterdir()}
    files |= dict.fromkeys([*others.split(), "chat_template.jinja", "tokenizer.model"], b"x")
    hub = Hub(files)
    monkeypatch.setattr(huggingface_hub, "snapshot_download", hub.snapshot_download)
    return hub


def hub_error(kind: str, message: str = "long\nstory") -> Exception:
    """An error as the hub raises it, without the HTTP response that its constructor asks for."""
    cls = getattr(huggingface_hub.errors, kind)
    error = cls.__new__(cls)
    error.args = (message,)
    return error


class TestPullFromTheHub:
    """`snapshot_download` is replaced: no network."""

    def test_weights_configuration_and_tokenizer_are_kept(self, cache, hub, converted):
        folder = pull("org/Some-Model.v1", progress=quiet())
        assert folder == cache / "org" / "Some-Model.v1" == resolve("org/Some-Model.v1")
        expected = {file.name for file in converted.iterdir()} | {"chat_template.jinja", "tokenizer.model"}
        assert {file.name for file in folder.iterdir()} == expected
        assert left_in(cache) == ["org"]

    def test_a_model_that_minfer_cannot_run_is_noticed_before_its_weights(self, cache, hub):
        hub.files["config.json"] = json.dumps({"architectures": ["MambaForCausalLM"]}).encode()
        with pytest.raises(ConfigError, match=r"org/x was fetched but not kept: .*MambaForCausalLM") as e:
            pull("org/x", progress=quiet())
        assert hub.asked == ["config.json"]
        assert ".pull-" not in str(e.value)
        assert left_in(cache) == []

    def test_a_repository_with_pickles_only(self, cache, hub):
        del hub.files["model.safetensors"]
        with pytest.raises(CheckpointError, match=r"org/x was fetched but not kept: .*holds no weights") as e:
            pull("org/x", progress=quiet())
        assert ".pull-" not in str(e.value)
        assert left_in(cache) == []

    def test_a_download_that_breaks_off(self, cache, hub):
        hub.files["model.safetensors"] = hub.files["model.safetensors"][:5000]
        with pytest.raises(CheckpointError, match=r"model\.safetensors \(5000 bytes\) is truncated"):
            pull("org/x", progress=quiet())
        assert left_in(cache) == []

    @pytest.mark.parametrize(
        ("error", "expected"),
        [
            (hub_error("GatedRepoError"), "grant you access: ask at https://huggingface.co/org/x"),
            (hub_error("RepositoryNotFoundError"), "no such model"),
            (hub_error("LocalEntryNotFoundError"), "cannot be reached"),
            (hub_error("OfflineModeIsEnabled"), "HF_HUB_OFFLINE"),
            (ConnectionError("refused"), "cannot be reached"),
            (hub_error("HfHubHTTPError", "500 Server Error\nmore"), "HfHubHTTPError: 500 Server Error"),
            (RuntimeError("odd\nnews"), "RuntimeError: odd"),
        ],
        ids=lambda value: type(value).__name__ if isinstance(value, Exception) else None,
    )
    def test_errors_are_one_line(self, cache, hub, error, expected):
        hub.error = error
        with pytest.raises(MinferError) as caught:
            pull("org/x", progress=quiet())
        message = str(caught.value)
        assert message.startswith("could not pull org/x: ")
        assert expected in message
        assert "\n" not in message
        assert left_in(cache) == []

    def test_a_full_disk(self, cache, hub):
        hub.error = OSError(errno.ENOSPC, "No space left on device")
        with pytest.raises(CheckpointError, match=r"could not write org/x to .*MINFER_HOME"):
            pull("org/x", progress=quiet())

    def test_an_index_of_shards_comes_along(self, cache, hub):
        weights = load(hub.files.pop("model.safetensors"))
        half = len(weights) // 2
        weight_map = {}
        for number, names in enumerate((list(weights)[:half], list(weights)[half:])):
            shard = f"model-0000{number + 1}-of-00002.safetensors"
            hub.files[shard] = save({name: weights[name] for name in names})
            weight_map |= dict.fromkeys(names, shard)
        hub.files["model.safetensors.index.json"] = json.dumps({"weight_map": weight_map}).encode()
        folder = pull("org/x", progress=quiet())
        assert (folder / "model-00002-of-00002.safetensors").exists()
        assert not (folder / "consolidated.safetensors").exists()
