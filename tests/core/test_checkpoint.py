"""Reading checkpoints: the right numbers, in little memory, and a clear error for each way that files can be wrong."""

import json
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers import GPT2Config, GPT2LMHeadModel, GPT2Model, LlamaConfig, LlamaForCausalLM

from minfer.core.checkpoint import Checkpoint
from minfer.core.config import ModelConfig
from minfer.core.errors import CheckpointError, ConfigError, MinferError, MinferWarning
from minfer.core.gpt2 import GPT2
from minfer.core.model import Transformer
from tests.core import measured

CONFIG = {
    "architectures": ["LlamaForCausalLM"],
    "vocab_size": 13,
    "hidden_size": 12,
    "intermediate_size": 20,
    "num_hidden_layers": 2,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "head_dim": 4,
    "max_position_embeddings": 32,
    "torch_dtype": "float32",
    "tie_word_embeddings": False,
}
Q_PROJ = "model.layers.1.self_attn.q_proj.weight"  # (24, 12)
EMBED, HEAD = "model.embed_tokens.weight", "lm_head.weight"  # (13, 12)
SHARDS = ("model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors")
INDEX = "model.safetensors.index.json"


def tensors(config: dict = CONFIG) -> dict[str, Tensor]:
    """Random float32 tensors under the names of files."""
    torch.manual_seed(0)
    model = Transformer(ModelConfig.from_dict(config))
    return {name if name == HEAD else f"model.{name}": torch.randn(p.shape) for name, p in model.named_parameters()}


def write(folder: Path, weights: dict[str, Tensor] | None = None, **changes) -> Path:
    """A folder with one safetensors file."""
    folder.mkdir(exist_ok=True)
    config = {**CONFIG, **changes}
    (folder / "config.json").write_text(json.dumps(config))
    save_file(tensors(config) if weights is None else weights, folder / "model.safetensors", {"format": "pt"})
    return folder


def write_sharded(folder: Path, weights: dict[str, Tensor] | None = None) -> Path:
    """The same in two shards and an index."""
    write(folder, {})
    (folder / "model.safetensors").unlink()
    names = sorted(weights or tensors())
    halves = names[: len(names) // 2], names[len(names) // 2 :]
    weight_map = {}
    for shard, part in zip(SHARDS, halves, strict=True):
        save_file({name: (weights or tensors())[name] for name in part}, folder / shard)
        weight_map |= dict.fromkeys(part, shard)
    (folder / INDEX).write_text(json.dumps({"metadata": {}, "weight_map": weight_map}))
    return folder


def model_of(checkpoint: Checkpoint) -> Transformer | GPT2:
    cls = GPT2 if checkpoint.config.architecture == "GPT2LMHeadModel" else Transformer
    return cls(checkpoint.config)


def load(folder: Path) -> Transformer | GPT2:
    checkpoint = Checkpoint(folder)
    model = model_of(checkpoint)
    plan = checkpoint.plan(model)
    for name, parameter in model.named_parameters():
        plan[name].read_into(parameter.data)
    return model


class TestReadingTheRightNumbers:
    """Against `transformers` or against the tensors that were written."""

    @pytest.mark.parametrize("shard_size", ["1GB", "5KB"])
    def test_llama_equals_what_transformers_saved(self, tmp_path, shard_size):
        oracle = LlamaForCausalLM(LlamaConfig(**{k: v for k, v in CONFIG.items() if k not in ("torch_dtype",)}))
        oracle.save_pretrained(tmp_path, max_shard_size=shard_size)
        assert (tmp_path / INDEX).exists() == (shard_size == "5KB")
        ours = dict(load(tmp_path).named_parameters())
        theirs = {name.removeprefix("model."): p for name, p in oracle.named_parameters()}
        assert ours.keys() == theirs.keys()
        assert all(torch.equal(ours[name], theirs[name]) for name in ours)

    @pytest.mark.parametrize("oracle_class", [GPT2LMHeadModel, GPT2Model], ids=["with prefix", "without prefix"])
    def test_gpt2_is_transposed(self, tmp_path, oracle_class):
        config = GPT2Config(vocab_size=13, n_embd=12, n_layer=2, n_head=3, n_positions=16, n_inner=20)
        oracle = oracle_class(config)
        oracle.config.architectures = ["GPT2LMHeadModel"]
        oracle.save_pretrained(tmp_path)
        facts = json.loads((tmp_path / "config.json").read_text())
        (tmp_path / "config.json").write_text(json.dumps({**facts, "architectures": ["GPT2LMHeadModel"]}))
        ours = dict(load(tmp_path).named_parameters())
        theirs = {name.removeprefix("transformer."): p for name, p in oracle.named_parameters()}
        assert ours.keys() == theirs.keys()
        for name, weight in theirs.items():
            conv1d = name.endswith("weight") and ".c_" in name
            assert torch.equal(ours[name], weight.t() if conv1d else weight), name
            assert ours[name].is_contiguous()

    def test_facts_are_known_before_any_tensor_is_read(self, tmp_path):
        weights = {name: tensor.bfloat16() for name, tensor in tensors().items()}
        weights["model.norm.weight"] = weights["model.norm.weight"].float()
        checkpoint = Checkpoint(write_sharded(tmp_path, weights))
        assert checkpoint.dtype == torch.bfloat16
        assert checkpoint.nbytes == sum(tensor.nbytes for tensor in weights.values())
        assert set(checkpoint.names) == set(weights)
        stored = checkpoint.plan(model_of(checkpoint))["layers.1.self_attn.q_proj.weight"]
        assert (stored.shape, stored.dtype, stored.nbytes) == ((24, 12), torch.bfloat16, 24 * 12 * 2)
        assert stored.file.name in SHARDS

    @pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.float16, torch.bfloat16])
    @pytest.mark.parametrize("wanted", [None, torch.float64, torch.float16])
    def test_dtypes_are_converted_once_and_directly(self, tmp_path, dtype, wanted):
        weights = {name: tensor.to(dtype) for name, tensor in tensors().items()}
        checkpoint = Checkpoint(write(tmp_path, weights))
        read = checkpoint.plan(model_of(checkpoint))["layers.1.self_attn.q_proj.weight"].read(wanted)
        assert read.dtype == (wanted or dtype)
        assert torch.equal(read, weights[Q_PROJ].to(wanted or dtype))

    def test_names_without_the_prefix_are_accepted(self, tmp_path):
        plain = {name.removeprefix("model."): tensor for name, tensor in tensors().items()}
        ours = dict(load(write(tmp_path, plain)).named_parameters())
        assert all(torch.equal(ours[name], tensor) for name, tensor in plain.items())

    def test_a_model_on_meta_can_be_planned(self, tmp_path):
        checkpoint = Checkpoint(write(tmp_path))
        with torch.device("meta"):
            model = model_of(checkpoint)
        plan = checkpoint.plan(model)
        assert all(plan[name].shape == parameter.shape for name, parameter in model.named_parameters())


class TestHarmlessThingsPass:
    """Files that look odd and are right."""

    def test_tensors_that_are_no_parameters(self, tmp_path):
        extra = {f"model.layers.{i}.self_attn.rotary_emb.inv_freq": torch.ones(2) for i in range(2)}
        load(write(tmp_path, tensors() | extra))

    def test_a_tied_head_that_is_stored_again(self, tmp_path):
        weights = tensors() | {HEAD: tensors()[EMBED].clone()}
        model = load(write(tmp_path, weights, tie_word_embeddings=True))
        assert model.lm_head.weight is model.embed_tokens.weight

    def test_a_tied_head_that_is_stored_alone(self, tmp_path):
        weights = tensors()
        del weights[EMBED]
        assert torch.equal(load(write(tmp_path, weights, tie_word_embeddings=True)).embed_tokens.weight, weights[HEAD])

    def test_other_safetensors_beside_the_shards_are_not_read(self, tmp_path):
        (write_sharded(tmp_path) / "consolidated.safetensors").write_bytes(b"not even safetensors")
        assert len(Checkpoint(tmp_path).file_names) == 2

    def test_the_index_wins_over_a_single_file_and_says_so(self, tmp_path):
        write_sharded(tmp_path)
        save_file({"other": torch.ones(1)}, tmp_path / "model.safetensors")
        with pytest.warns(MinferWarning, match=r"model\.safetensors is not read, because .*index\.json names other"):
            assert "other" not in Checkpoint(tmp_path).names

    def test_files_that_are_links(self, tmp_path):
        blobs = write(tmp_path / "blobs")
        (tmp_path / "snapshot").mkdir()
        for name in ("config.json", "model.safetensors"):
            (tmp_path / "snapshot" / name).symlink_to(blobs / name)
        load(tmp_path / "snapshot")


LFS = "version https://git-lfs.github.com/spec/v1\noid sha256:4d7a214614ab2935c943f9e0ff69d22eadbb8f32b1\nsize 9\n"


def edit_weights(folder: Path, **edits: Tensor | None) -> None:
    """Replace (or with None, remove) tensors; `__` in a keyword stands for a dot."""
    weights = load_file(folder / "model.safetensors")
    for key, value in edits.items():
        name = key.replace("__", ".")
        weights.pop(name, None)
        if value is not None:
            weights[name] = value
    save_file(weights, folder / "model.safetensors")


def edit_index(folder: Path, **edits: object) -> None:
    write_sharded(folder)
    index = json.loads((folder / INDEX).read_text())
    index["weight_map"] |= {key.replace("__", "."): value for key, value in edits.items()}
    (folder / INDEX).write_text(json.dumps(index))


def cut(file: Path, size: int) -> None:
    file.write_bytes(file.read_bytes()[:size])


def replaced(folder: Path, **files: str | bytes) -> None:
    """Empty the folder but for config.json, then write `files`; `__` in a keyword stands for a dot."""
    (folder / "model.safetensors").unlink()
    for name, content in files.items():
        (folder / name.replace("__", ".")).write_bytes(content.encode() if isinstance(content, str) else content)


def rename_tensor(folder: Path) -> None:
    edit_weights(folder, **{Q_PROJ.replace(".", "__"): None, "model__layers__1__attn__q__weight": torch.ones(24, 12)})


def drop_shard(folder: Path) -> None:
    (write_sharded(folder) / SHARDS[1]).unlink()


def lose_tensor_of_shard(folder: Path) -> None:
    write_sharded(folder)
    shard = next(s for s in SHARDS if Q_PROJ in load_file(folder / s))
    save_file({k: v for k, v in load_file(folder / shard).items() if k != Q_PROJ}, folder / shard)


def double_tensor(folder: Path) -> None:
    write_sharded(folder)
    for shard in SHARDS:
        save_file(load_file(folder / shard) | {Q_PROJ: torch.ones(24, 12)}, folder / shard)


def index_without_map(folder: Path) -> None:
    (write_sharded(folder) / INDEX).write_text('{"metadata": {}}')


def broken_index(folder: Path) -> None:
    cut(write_sharded(folder) / INDEX, 60)


def lfs_index(folder: Path) -> None:
    (write_sharded(folder) / INDEX).write_text(LFS)


def tie(folder: Path, head: Tensor) -> None:
    write(folder, tensors() | {HEAD: head}, tie_word_embeddings=True)


def empty(folder: Path) -> None:
    for file in folder.iterdir():
        file.unlink()


def with_config(**changes: object):
    return lambda folder: (folder / "config.json").write_text(json.dumps({**CONFIG, **changes}))


HUGE = "model__layers__0__mlp__gate_proj__weight"
NORM = "model__norm__weight"

# what is done to a good folder -> what the message must say
BAD = {
    "no folder": (lambda f: (empty(f), f.rmdir()), ["is not a folder"]),
    "empty folder": (empty, ["is empty", "config.json, model.safetensors"]),
    "weights are a folder": (
        lambda f: ((f / "model.safetensors").unlink(), (f / "model.safetensors").mkdir()),
        ["model.safetensors is not a file", "replace it"],
    ),
    "only a config": (replaced, ["holds no weights", "only config.json"]),
    "no config": (lambda f: (f / "config.json").unlink(), ["config.json", "does not exist"]),
    "config is not JSON": (lambda f: (f / "config.json").write_text("{oops"), ["config.json", "JSON"]),
    "config is an LFS pointer": (lambda f: (f / "config.json").write_text(LFS), ["config.json", "Git LFS pointer"]),
    "empty weights file": (lambda f: cut(f / "model.safetensors", 0), ["model.safetensors", "(0 bytes)", "truncated"]),
    "truncated header": (lambda f: cut(f / "model.safetensors", 50), ["(50 bytes)", "truncated", "download it again"]),
    "truncated data": (lambda f: cut(f / "model.safetensors", 9000), ["(9000 bytes)", "truncated"]),
    "HTML instead of weights": (
        lambda f: (f / "model.safetensors").write_text("<html>404</html>"),
        ["not a safetensors"],
    ),
    "weights are an LFS pointer": (
        lambda f: (f / "model.safetensors").write_text(LFS),
        ["Git LFS pointer", "git lfs pull"],
    ),
    "pickles only": (
        lambda f: replaced(f, pytorch_model__bin=b"\x80"),
        ["pickled", "pytorch_model.bin", "save_pretrained"],
    ),
    "another safetensors name": (lambda f: replaced(f, weights__safetensors=b"x"), ["weights.safetensors", "rename"]),
    "missing tensor": (lambda f: edit_weights(f, **{HUGE: None}), ["1 missing: layers.0.mlp.gate_proj.weight"]),
    "renamed tensor": (
        rename_tensor,
        ["1 missing: layers.1.self_attn.q_proj.weight", "1 unexpected: model.layers.1.attn.q.weight"],
    ),
    "many missing tensors": (
        lambda f: write(f, {EMBED: torch.ones(13, 12)}),
        ["20 missing: layers.0", "and 17 more", "does not fit its config.json"],
    ),
    "unexpected bias": (
        lambda f: edit_weights(f, model__layers__0__self_attn__q_proj__bias=torch.ones(24)),
        ["1 unexpected: model.layers.0.self_attn.q_proj.bias"],
    ),
    "more layers than the config": (with_config(num_hidden_layers=1), ["9 unexpected: model.layers.1.", "and 6 more"]),
    "wrong shape": (
        lambda f: edit_weights(f, **{NORM: torch.ones(5)}),
        ["1 of the wrong shape", "model.norm.weight in model.safetensors is (5,), not (12,)"],
    ),
    "transposed weight": (
        lambda f: edit_weights(f, **{HUGE: torch.ones(12, 20)}),
        ["model.layers.0.mlp.gate_proj.weight", "is (12, 20), not (20, 12)"],
    ),
    "head absent though not tied": (
        lambda f: edit_weights(f, lm_head__weight=None),
        ["1 missing: lm_head.weight", "tie_word_embeddings is false"],
    ),
    "tied head that differs": (
        lambda f: tie(f, tensors()[HEAD]),
        [
            "lm_head.weight in model.safetensors differs from model.embed_tokens.weight",
            "set tie_word_embeddings to false",
        ],
    ),
    "tied head that differs in one number": (
        lambda f: tie(f, tensors()[EMBED].index_put((torch.tensor(12), torch.tensor(11)), torch.tensor(9.0))),
        ["lm_head.weight", "differs"],
    ),
    "tied head of another shape": (
        lambda f: tie(f, torch.ones(14, 12)),
        ["lm_head.weight", "is (14, 12), not (13, 12)"],
    ),
    "one parameter under two names": (
        lambda f: edit_weights(f, norm__weight=torch.full((12,), 3.0)),
        ["model.norm.weight in model.safetensors differs from norm.weight"],
    ),
    "int8 weights": (
        lambda f: edit_weights(f, **{HUGE: torch.ones(20, 12, dtype=torch.int8)}),
        ["quantised checkpoint", "1 tensors", "model.layers.0.mlp.gate_proj.weight (I8)", "unquantised"],
    ),
    "fp8 weights": (
        lambda f: edit_weights(f, **{HUGE: torch.ones(20, 12).to(torch.float8_e4m3fn)}),
        ["quantised checkpoint", "(F8_E4M3)"],
    ),
    "missing shard": (drop_shard, ["lacks 1 files", SHARDS[1], "download"]),
    "shards without index": (lambda f: (write_sharded(f) / INDEX).unlink(), [SHARDS[0], "missing index"]),
    "index names a tensor that its shard lacks": (lose_tensor_of_shard, [INDEX, "names 1 tensors", Q_PROJ]),
    "index puts a tensor in the wrong shard": (
        lambda f: edit_index(f, lm_head__weight=SHARDS[1]),
        ["names 1 tensors", f"lm_head.weight in {SHARDS[1]}"],
    ),
    "tensor in two shards": (double_tensor, [Q_PROJ, f"in both {SHARDS[0]} and {SHARDS[1]}"]),
    "index leaves the folder": (
        lambda f: edit_index(f, lm_head__weight="../x.safetensors"),
        ["'../x.safetensors'", "do not trust"],
    ),
    "index with an absolute path": (
        lambda f: edit_index(f, lm_head__weight="/etc/passwd"),
        ["'/etc/passwd'", "lm_head.weight"],
    ),
    "index with a Windows path": (lambda f: edit_index(f, lm_head__weight="..\\x"), ["do not trust"]),
    "index with a number for a file": (lambda f: edit_index(f, lm_head__weight=7), ["lm_head.weight in 7"]),
    "index without a map": (index_without_map, [INDEX, "weight_map"]),
    "index is not JSON": (broken_index, [INDEX, "download it again"]),
    "index is an LFS pointer": (lfs_index, [INDEX, "Git LFS pointer"]),
}


class TestBadFiles:
    """Each is one line that names file and tensor, and comes before any parameter is touched."""

    @pytest.mark.parametrize("case", BAD)
    def test_bad_checkpoint_is_refused(self, tmp_path, case):
        damage, expected = BAD[case]
        folder = write(tmp_path / "model")
        damage(folder)
        models: list[Transformer | GPT2] = []

        def plan() -> None:
            checkpoint = Checkpoint(folder)
            models.append(model_of(checkpoint))
            for parameter in models[0].parameters():
                parameter.data.fill_(7.0)
            checkpoint.plan(models[0])

        with pytest.raises(MinferError) as caught:
            plan()
        message = str(caught.value)
        assert isinstance(caught.value, ConfigError if expected[0] == "config.json" else CheckpointError)
        assert all(part in message for part in expected), message
        assert "\n" not in message
        assert len(message) < 700
        assert all((parameter == 7.0).all() for model in models for parameter in model.parameters())

    def test_a_file_that_changed_after_planning(self, tmp_path):
        checkpoint = Checkpoint(write(tmp_path))
        stored = checkpoint.plan(model_of(checkpoint))["norm.weight"]
        cut(tmp_path / "model.safetensors", 100)
        with pytest.raises(CheckpointError, match=r"model\.safetensors can no longer give model\.norm\.weight"):
            stored.read()

    def test_a_destination_of_another_shape(self, tmp_path):
        checkpoint = Checkpoint(write(tmp_path))
        stored = checkpoint.plan(model_of(checkpoint))["norm.weight"]
        with pytest.raises(CheckpointError, match=r"norm\.weight has shape \(12,\), its destination \(1,\)"):
            stored.read_into(torch.ones(1))  # copy_ would have broadcast the other way round
        with pytest.raises(CheckpointError, match="destination"):
            stored.read_into(torch.ones(3, 12))


PEAK_SCRIPT = """
import sys, threading, time
import torch
from minfer.core.checkpoint import StoredTensor
from pathlib import Path

def anonymous():
    with open("/proc/self/status") as lines:
        return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("RssAnon"))

def peak(work):
    seen, done = [], threading.Event()
    def watch():
        while not done.is_set():
            seen.append(anonymous())
    watcher = threading.Thread(target=watch, daemon=True)
    before = anonymous()
    watcher.start()
    kept = work()
    done.set()
    watcher.join()
    return max(seen) - before

torch.set_num_threads(1)
shape = (3072, 4096)
tensors = [StoredTensor(n, shape, torch.bfloat16, Path(sys.argv[1]), n, n == "c") for n in "abc"]
tensors[0].read_into(torch.empty(shape)[:, :])  # warm up what torch allocates once
print(peak(lambda: [tensor.read(torch.float32) for tensor in tensors]))
ready = torch.zeros(shape)
print(peak(lambda: [tensor.read_into(ready) for tensor in tensors]))
"""


class TestMemory:
    """A mapped file is not anonymous memory; a copy of it is."""

    @pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
    def test_reading_takes_no_more_than_the_destination(self, tmp_path):
        a, b, c = (torch.ones(shape, dtype=torch.bfloat16) for shape in ((3072, 4096), (3072, 4096), (4096, 3072)))
        save_file({"a": a, "b": b, "c": c}, tmp_path / "x.safetensors")
        fresh, in_place = map(int, measured.lines(PEAK_SCRIPT, tmp_path / "x.safetensors"))
        weights = 3 * 3072 * 4096 * 4
        assert fresh < weights * 1.02, f"{fresh / 1e6:.0f} MB of memory for {weights / 1e6:.0f} MB of weights"
        assert in_place < 4e6, f"{in_place / 1e6:.0f} MB of memory beside the destination"

    @pytest.mark.parametrize("name", ["layers.1.self_attn.q_proj.weight", "norm.weight"])
    def test_what_was_read_does_not_depend_on_the_file_any_more(self, tmp_path, name):
        checkpoint = Checkpoint(write(tmp_path))
        read = checkpoint.plan(model_of(checkpoint))[name].read()
        before = read.clone()
        file = tmp_path / "model.safetensors"
        size = file.stat().st_size
        with file.open("r+b") as stream:
            stream.write(b"\0" * size)
        assert torch.equal(read, before)
        assert read.untyped_storage().nbytes() == read.nbytes
