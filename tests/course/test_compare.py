"""What `minfer compare` counts is what the lengths of the requests say."""

import pytest
import torch

from minfer.cli import main
from minfer.core.config import ModelConfig
from minfer.core.errors import OptionsError
from minfer.core.hub import resolve
from minfer.course.lectures.compare import WORKLOADS, Effect
from minfer.course.lectures.compare_page import effect_html


@pytest.fixture(autouse=True)
def one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def lengths():
    """(prompt, answer) of each request of the mixed workload."""
    vocab_size = ModelConfig.from_folder(resolve("tiny")).vocab_size
    return [(len(one.prompt_ids), one.params.max_tokens) for one in WORKLOADS["mixed"](vocab_size).requests]


def test_without_a_cache_each_step_computes_all_tokens():
    ((prompt, new),) = [(len(o.prompt_ids), o.params.max_tokens) for o in WORKLOADS["single"](1000).requests]
    without, cached = Effect.of(1, "tiny", "single"), Effect.of(3, "tiny", "single")
    assert without.computed == sum(prompt + t for t in range(new))
    assert cached.computed == prompt + new - 1
    assert without.steps == cached.steps == new
    assert without.kv_bytes == 0
    assert cached.kv_bytes > 0


def test_padding_is_what_the_rectangle_has_beside_the_tokens():
    batch = Effect.of(4, "tiny", "mixed")
    flat = Effect.of(5, "tiny", "mixed")
    requests = lengths()
    longest = max(prompt for prompt, _ in requests)
    tokens = sum(prompt + new - 1 for prompt, new in requests)
    assert batch.padding == sum(longest - prompt for prompt, _ in requests)
    assert batch.computed - batch.padding == flat.computed == tokens
    assert flat.padding == 0
    assert batch.steps == max(new for _, new in requests)
    assert flat.kv_bytes < batch.kv_bytes
    assert batch.output == flat.output == sum(new for _, new in requests)


def test_waiting_is_counted_in_steps():
    alone = Effect.of(3, "tiny", "mixed")
    ends = [new for _, new in lengths()]
    assert alone.waited == [1 + sum(ends[:i]) for i in range(len(ends))]


def test_guesses_are_asked_for_before_anything_is_shown(monkeypatch, capsys, tmp_path):
    asked = []
    monkeypatch.setattr(
        "typer.prompt", lambda text, *more, **options: asked.append((text, capsys.readouterr().out)) or "7"
    )
    page = tmp_path / "page.html"
    assert main(["compare", "2", "3", "-w", "single", "--ask", "--html", str(page)]) == 0
    assert asked[0] == ("steps: phase 2 32. Phase 3", "")
    assert "(you said 7)" in capsys.readouterr().out or any("(you said 7)" in shown for _, shown in asked)
    text = page.read_text()
    assert text.index('id="effect"') < text.index('id="overridden"')


def test_a_bar_is_as_long_as_its_share():
    one, other = Effect(1, steps=10, waited=[1], seconds=1.0), Effect(2, steps=5, waited=[1], seconds=1.0)
    text = effect_html(one, other, "about <it>")
    assert "width:12.00em" in text
    assert "width:6.00em" in text
    assert "about &lt;it&gt;" in text


def test_an_unknown_workload_is_refused():
    with pytest.raises(OptionsError, match="use one of single, mixed, prefix"):
        Effect.of(3, "tiny", "storm")
