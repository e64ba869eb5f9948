"""Names of models: what each stands for, and what is said when it stands for nothing."""

import json
from pathlib import Path

import pytest

from minfer.core.errors import CheckpointError
from minfer.core.hub import hub


@pytest.fixture
def cache(tmp_path, monkeypatch) -> Path:
    """An empty model cache, and a current folder without models."""
    monkeypatch.setenv("MINFER_HOME", str(tmp_path / "cache"))
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    return tmp_path / "cache"


def model_in(folder: Path, architecture: str = "LlamaForCausalLM") -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps({"architectures": [architecture]}))
    (folder / "model.safetensors").write_bytes(b"x" * 1000)
    return folder


@pytest.fixture
def embedded(tmp_path, monkeypatch) -> Path:
    """A stand-in for the embedded model, whether or not this copy of minfer carries it."""
    folder = model_in(tmp_path / "assets" / "tiny")
    monkeypatch.setattr(hub, "embedded_folder", lambda: folder)
    return folder


class TestCacheFolder:
    """`MINFER_HOME`, else the user's cache."""

    def test_minfer_home_wins(self, monkeypatch):
        monkeypatch.setenv("MINFER_HOME", "~/models")
        monkeypatch.setenv("HOME", "/home/ada")
        assert hub.cache_folder() == Path("/home/ada/models")

    @pytest.mark.parametrize("unset", [None, ""])
    def test_xdg_cache_home_then_home(self, monkeypatch, unset):
        monkeypatch.delenv("MINFER_HOME", raising=False)
        monkeypatch.setenv("HOME", "/home/ada")
        monkeypatch.setenv("XDG_CACHE_HOME", "/scratch/ada")
        assert hub.cache_folder() == Path("/scratch/ada/minfer")
        monkeypatch.delenv("XDG_CACHE_HOME")
        if unset is not None:
            monkeypatch.setenv("XDG_CACHE_HOME", unset)
            monkeypatch.setenv("MINFER_HOME", unset)
        assert hub.cache_folder() == Path("/home/ada/.cache/minfer")


class TestResolve:
    """A name or a path to a folder."""

    def test_the_embedded_model(self, cache, embedded):
        assert hub.resolve("tiny") == embedded

    def test_the_embedded_model_lies_in_the_package(self):
        assert hub.embedded_folder() == Path(hub.__file__).parents[2] / "assets" / "tiny"

    @pytest.mark.parametrize("name", ["smollm2", "HuggingFaceTB/SmolLM2-135M", "org_1/a.b-c_d"])
    def test_a_pulled_name(self, cache, name):
        folder = model_in(cache / name)
        assert hub.resolve(name) == folder

    def test_a_folder(self, cache, tmp_path, monkeypatch):
        folder = model_in(tmp_path / "mine")
        monkeypatch.setenv("HOME", str(tmp_path))
        assert hub.resolve(folder) == hub.resolve(str(folder)) == hub.resolve("../mine").resolve() == folder
        assert hub.resolve("~/mine") == folder

    def test_a_known_name_wins_over_a_folder_of_that_spelling(self, cache, embedded, tmp_path):
        pulled = model_in(cache / "smollm2")
        model_in(Path("smollm2"))
        model_in(Path("tiny"))
        assert hub.resolve("smollm2") == pulled
        assert hub.resolve("tiny") == embedded
        assert hub.resolve("./tiny") == Path("tiny")
        assert hub.resolve(Path("smollm2")) == Path("smollm2")

    @pytest.mark.parametrize(
        ("name", "expected"),
        [
            ("smolm2", ["no model 'smolm2'", "(tiny, smollm2)", "did you mean smollm2?", "minfer pull smollm2"]),
            ("Qwen/Qwen3-0.6B", ["no model 'Qwen/Qwen3-0.6B'", "minfer pull Qwen/Qwen3-0.6B"]),
            ("llama2-7b", ["no model 'llama2-7b'", "did you mean random:llama2-7b"]),
            ("random:7b", ["random:7b has no folder"]),
            ("xyzzy", ["no model 'xyzzy'", "(tiny, smollm2)", "minfer pull smollm2"]),
            ("", ["no model ''"]),
            ("../../etc", ["no model '../../etc'", "minfer pull smollm2"]),
        ],
    )
    def test_an_unknown_name_says_what_there_is(self, cache, embedded, name, expected):
        model_in(cache / "smollm2")
        with pytest.raises(CheckpointError) as caught:
            hub.resolve(name)
        message = str(caught.value)
        assert all(part in message for part in expected), message
        assert "\n" not in message

    def test_nothing_is_far_from_everything(self, cache, embedded):
        with pytest.raises(CheckpointError) as caught:
            hub.resolve("xyzzy")
        assert "did you mean" not in str(caught.value)

    def test_a_file(self, cache, tmp_path):
        file = model_in(tmp_path / "mine") / "model.safetensors"
        with pytest.raises(CheckpointError, match=r"model\.safetensors is a file: give the folder"):
            hub.resolve(file)

    def test_a_copy_without_the_embedded_model(self, cache, tmp_path, monkeypatch):
        monkeypatch.setattr(hub, "embedded_folder", lambda: tmp_path / "none")
        with pytest.raises(CheckpointError, match="lacks its embedded model"):
            hub.resolve("tiny")
        with pytest.raises(CheckpointError, match="none yet"):
            hub.resolve("other")

    def test_a_name_cannot_leave_the_cache(self, cache, tmp_path):
        model_in(tmp_path / "secret")
        with pytest.raises(CheckpointError):
            hub.resolve("secret")
        with pytest.raises(CheckpointError, match=r"'\.\./secret' is not the name of a model"):
            hub.check_name("../secret")


class TestInstalled:
    """What `minfer models` lists."""

    def test_the_embedded_one_first_then_the_pulled_ones_by_name(self, cache, embedded):
        model_in(cache / "smollm2")
        model_in(cache / "Qwen" / "Qwen3-0.6B", "Qwen3ForCausalLM")
        found = hub.installed()
        assert [model.name for model in found] == ["tiny", "Qwen/Qwen3-0.6B", "smollm2"]
        assert [model.architecture for model in found] == ["LlamaForCausalLM", "Qwen3ForCausalLM", "LlamaForCausalLM"]
        assert all(model.size == sum(f.stat().st_size for f in model.folder.iterdir()) > 1000 for model in found)
        assert all(hub.resolve(model.name) == model.folder for model in found)

    def test_no_cache_yet(self, cache, embedded):
        assert [model.name for model in hub.installed()] == ["tiny"]

    def test_pulls_under_way_and_stray_files_are_no_models(self, cache, embedded):
        model_in(cache / ".pull-abc" / "model")
        (cache / "empty").mkdir()
        (cache / "notes.txt").write_text("hello")
        assert [model.name for model in hub.installed()] == ["tiny"]

    @pytest.mark.parametrize("config", ["{broken", "[]", "{}", '{"architectures": []}', '{"architectures": null}'])
    def test_a_damaged_config_is_listed_as_unknown(self, cache, embedded, config):
        (model_in(cache / "odd") / "config.json").write_text(config)
        assert hub.installed()[1].architecture == "unknown"
