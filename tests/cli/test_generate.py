"""`minfer generate` of one prompt says what the library says, as it comes."""

import io
import re
import sys

import pytest

import minfer
from minfer import SamplingParams
from minfer.cli import main
from minfer.commands.generate import DEFAULT_PROMPT
from minfer.commands.phases import engine_class
from minfer.core.hub.published import SHAPES
from tests.cli.streams import Screen

DefaultEngine = engine_class(minfer.SERVING_PHASE)
PHASES = range(1, minfer.NEWEST_PHASE + 1)


@pytest.fixture(scope="module")
def engine(folder):
    return minfer.Engine.load(str(folder))


def one(engine, prompt, **params):
    return engine.generate(prompt, SamplingParams(**params))[0]


@pytest.mark.parametrize("phase", PHASES)
def test_every_phase_writes_the_librarys_text_and_a_newline(run, folder, engine, phase):
    result = run("generate", "the sea", "-m", folder, "--phase", phase, "--max-tokens", 8)
    assert (result.code, result.out) == (0, one(engine, "the sea", max_tokens=8).text + "\n")


def test_the_default_is_the_newest_phase(run, folder):
    assert f"phase {minfer.SERVING_PHASE}," in run("generate", "the sea", "-m", folder, "--max-tokens", 1).err


def test_text_is_written_as_it_comes_and_none_is_lost(folder, engine, monkeypatch):
    shown = []
    screen = Screen()
    monkeypatch.setattr(screen, "flush", lambda: shown.append(screen.getvalue()))
    monkeypatch.setattr(sys, "stdout", screen)
    assert main(["generate", "the sea", "-m", str(folder), "--max-tokens", "12", "-q"]) == 0
    text = one(engine, "the sea", max_tokens=12).text
    growing = sorted(set(shown), key=len)
    assert len(growing) > 5
    assert all(text.startswith(part.removesuffix("\n")) for part in growing)
    assert growing[-1] == text + "\n"


def test_a_text_that_ends_a_line_gets_no_second_newline(run, folder, engine, monkeypatch):
    monkeypatch.setattr(type(engine.tokenizer.stream_decoder()), "push", lambda self, token_id: "line\n")
    assert run("generate", "x", "-m", folder, "--max-tokens", 1).out == "line\n"


SAMPLING = [
    (["--temperature", "0.9", "--seed", "3"], {"temperature": 0.9, "seed": 3}),
    (["--temperature", "2", "--seed", "3", "--top-k", "4"], {"temperature": 2.0, "seed": 3, "top_k": 4}),
    (["--logit-bias", "8=1e4", "--logit-bias", "9=1e4"], {"logit_bias": {8: 1e4, 9: 1e4}}),
    (["--repetition-penalty", "9", "--ignore-eos"], {"repetition_penalty": 9.0, "ignore_eos": True}),
    (["--stop-token-ids", "5", "--stop-token-ids", "9", "--logit-bias", "9=1e4"],
     {"stop_token_ids": [5, 9], "logit_bias": {9: 1e4}}),
]  # fmt: skip


@pytest.mark.parametrize(
    ("flags", "params"), SAMPLING, ids=lambda value: " ".join(value) if isinstance(value, list) else ""
)
def test_sampling_flags_are_sampling_params(run, folder, engine, flags, params):
    result = run("generate", "the sea", "-m", folder, "--max-tokens", 12, *flags)
    assert result.out.rstrip("\n") == one(engine, "the sea", max_tokens=12, **params).text.rstrip("\n")


def test_a_stop_string_is_cut_off(run, folder, engine):
    text = one(engine, "the sea", max_tokens=12).text
    result = run("generate", "the sea", "-m", folder, "--max-tokens", 12, "--stop", "zzz", "--stop", text[5])
    assert result.out == text[: text.index(text[5])] + "\n"
    assert "(stop)" in result.err


def test_max_tokens_none_goes_on_to_the_end_of_the_context(run, folder):
    result = run("generate", "abc", "-m", folder, "--max-tokens", "none", "--context", 20, "--ignore-eos")
    prompt_tokens = len(minfer.Engine.load(str(folder)).tokenizer.encode("abc"))
    assert f"minfer: {20 - prompt_tokens} tokens (length)" in result.err


def test_a_chat_is_what_its_template_makes_of_it(run, folder, engine):
    messages = [{"role": "system", "content": "be kind"}, {"role": "user", "content": "hello"}]
    result = run("generate", "hello", "--chat", "--system", "be kind", "-m", folder, "--max-tokens", 8)
    assert result.out == one(engine, messages, max_tokens=8).text + "\n"
    assert result.out != run("generate", "hello", "--chat", "-m", folder, "--max-tokens", 8).out


@pytest.fixture
def asked(monkeypatch):
    """The prompts that the engine was asked to continue."""
    prompts = []
    sequences = DefaultEngine.sequences

    def record(self, new, params=None):
        prompts.extend(new)
        return sequences(self, new, params)

    monkeypatch.setattr(DefaultEngine, "sequences", record)
    return prompts


@pytest.mark.parametrize("prompt", [["-"], []], ids=["dash", "piped"])
@pytest.mark.parametrize("newline", [b"", b"\n", b"\r\n"])
def test_standard_input_is_the_prompt_without_its_last_newline(run, folder, asked, prompt, newline):
    assert run("generate", *prompt, "-m", folder, "--max-tokens", 1, stdin=b"\nthe\nsea\n" + newline).code == 0
    assert asked == ["\nthe\nsea\n" if newline else "\nthe\nsea"]


def test_an_empty_standard_input_is_an_empty_prompt_only_where_asked_for(run, asked):
    assert run("generate", "-", "--max-tokens", 1, stdin=b"").code == 0
    assert run("generate", "--max-tokens", 1, stdin=b"").code == 0
    assert asked == ["", DEFAULT_PROMPT]


def test_a_prompt_leaves_standard_input_alone(run, folder, asked):
    assert run("generate", "the sea", "-m", folder, "--max-tokens", 1, stdin=b"something else").code == 0
    assert asked == ["the sea"]


def test_several_samples_are_told_apart(run, folder, engine):
    result = run("generate", "the sea", "-m", folder, "--n", 2, "--temperature", 1, "--seed", 4, "--max-tokens", 6)
    first, second = engine.generate("the sea", SamplingParams(n=2, temperature=1.0, seed=4, max_tokens=6))
    assert first.text != second.text
    assert result.out == f"--- 1 of 2 ---\n{first.text}\n--- 2 of 2 ---\n{second.text}\n"


def test_the_summary_says_how_much_how_fast_and_by_what(run, folder):
    result = run(
        "generate", "the sea", "-m", folder, "--max-tokens", 5, "--device", "cpu", "--phase", 1, "--ignore-eos"
    )
    (line,) = result.err.splitlines()
    speed = re.match(r"minfer: 5 tokens \(length\), first after (\d+) ms, then [\d.]+ tokens/s; ", line)
    assert 0 < int(speed[1]) < 60_000
    assert line.endswith(f"{folder}, phase 1, cpu, float32 (as stored)")


def test_the_summary_gives_the_reason_for_the_dtype(run, folder):
    assert "float64 (as asked)" in run("generate", "a", "-m", folder, "--max-tokens", 1, "--dtype", "float64").err


@pytest.mark.parametrize("count", [0, 1])
def test_the_summary_of_nothing_has_no_speed(run, folder, count):
    result = run("generate", "the sea", "-m", folder, "--max-tokens", count)
    assert result.err.startswith(f"minfer: {count} tokens (length)")
    assert "tokens/s" not in result.err


def test_quiet_leaves_standard_error_empty(run, folder):
    assert run("generate", "the sea", "-m", folder, "--max-tokens", 2, "--quiet").err == ""


def test_a_published_shape_runs_on_random_weights(run, monkeypatch):
    facts = {"architectures": ["LlamaForCausalLM"], "vocab_size": 300, "hidden_size": 16, "intermediate_size": 32}
    facts |= {"num_hidden_layers": 1, "num_attention_heads": 2, "max_position_embeddings": 64, "hidden_act": "silu"}
    monkeypatch.setitem(SHAPES, "mini", facts)
    result = run("generate", "a", "-m", "random:mini", "--max-tokens", 3)
    assert (result.code, "3 tokens" in result.err, "random:mini, phase" in result.err) == (0, True, True)


def test_the_embedded_model_needs_no_prompt(run, asked):
    result = run("generate", "--max-tokens", 8)
    assert (result.code, asked) == (0, [DEFAULT_PROMPT])
    assert result.out.strip()


def interrupting_commit(engine):
    """The engine's `commit`, interrupted at the third token."""
    commit = engine.commit

    def interrupt(sequences, token_ids):
        commit(sequences, token_ids)
        if len(sequences[0].output_ids) == 3:
            raise KeyboardInterrupt

    return interrupt


def interrupting_write(text):
    """Standard output, interrupted at the third piece."""
    if len(sys.stdout.getvalue()) > 2:
        raise KeyboardInterrupt
    return io.StringIO.write(sys.stdout, text)


@pytest.mark.parametrize("at", ["step", "write"])
@pytest.mark.parametrize("phase", PHASES)
def test_an_interrupt_returns_130_and_leaves_the_engine_free(run, folder, monkeypatch, phase, at):
    kind = engine_class(phase)
    engine = kind.load(str(folder))
    text = one(engine, "the sea", max_tokens=8).text
    with monkeypatch.context() as patch:
        patch.setattr(kind, "load", lambda model, **options: engine)
        if at == "step":
            patch.setattr(engine, "commit", interrupting_commit(engine))
        else:
            screen = Screen()
            patch.setattr(screen, "write", interrupting_write)
            patch.setattr(sys, "stdout", screen)
        result = run("generate", "the sea", "-m", folder, "--phase", phase, "--max-tokens", 8)
    assert (result.code, result.err) == (130, "\n")
    assert text.startswith(result.out)
    assert one(engine, "the sea", max_tokens=8).text == text
