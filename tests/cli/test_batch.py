"""`minfer generate --file`: one line of JSON for each prompt, in order, each as if it were alone."""

import json
import sys

import pytest

import minfer
from minfer import SamplingParams
from minfer.commands.phases import engine_class
from tests.cli.streams import Screen

DefaultEngine = engine_class(minfer.SERVING_PHASE)
PROMPTS = ["the sea", "a", "wind and rain"]


@pytest.fixture(scope="module")
def engine(folder):
    return minfer.Engine.load(str(folder))


@pytest.fixture
def write(tmp_path):
    """Write lines (text, or objects as JSON) to a file and return its path."""

    def write(name, *lines):
        path = tmp_path / name
        path.write_text("\n".join(line if isinstance(line, str) else json.dumps(line) for line in lines) + "\n")
        return path

    return write


@pytest.mark.parametrize("phase", range(1, minfer.NEWEST_PHASE + 1))
def test_every_phase_answers_each_line_as_if_it_were_alone(run, folder, engine, write, phase):
    path = write("prompts.txt", *PROMPTS)
    result = run("generate", "--file", path, "-m", folder, "--phase", phase, "--max-tokens", 6)
    alone = [engine.generate(prompt, SamplingParams(max_tokens=6))[0] for prompt in PROMPTS]
    assert result.code == 0
    assert [line["index"] for line in result.answers] == [0, 1, 2]
    assert [line["prompt"] for line in result.answers] == PROMPTS
    assert [line["text"] for line in result.answers] == [completion.text for completion in alone]
    assert [line["token_ids"] for line in result.answers] == [completion.token_ids for completion in alone]


def test_an_answer_has_these_keys_and_no_others(run, folder, write):
    path = write("prompts.txt", "the sea")
    (line,) = run("generate", "-f", path, "-m", folder, "--max-tokens", 2).answers
    assert list(line) == ["index", "prompt", "text", "token_ids", "finish_reason", "stop_reason", "timings"]
    assert (line["finish_reason"], line["stop_reason"]) == ("length", None)
    assert 0 <= line["timings"]["queued_s"] <= line["timings"]["first_token_s"] <= line["timings"]["total_s"]


def test_blank_lines_and_windows_line_ends_and_a_byte_order_mark_are_no_prompts(run, folder, tmp_path):
    path = tmp_path / "prompts.txt"
    path.write_bytes("\ufeffthe sea\r\n\r\n   \n a\u2028b \r\n".encode())
    answers = run("generate", "-f", path, "-m", folder, "--max-tokens", 0).answers
    assert [line["prompt"] for line in answers] == ["the sea", " a\u2028b "]


def test_json_lines_have_prompts_of_every_kind_and_parameters_of_their_own(run, folder, engine, write):
    messages = [{"role": "user", "content": "hello"}]
    path = write(
        "prompts.jsonl",
        {"prompt": "the sea", "max_tokens": 3},
        "",
        {"messages": messages, "temperature": 1, "seed": 9},
        {"prompt_ids": [1, 7, 8], "logit_bias": {"9": 1e4, "10": 2e4}, "stop_token_ids": [10]},
        {"prompt": "a", "logprobs": None, "max_tokens": 0},
    )
    result = run("generate", "-f", path, "-m", folder, "--max-tokens", 5, "--logprobs", 1)
    first, chat, ids, last = result.answers
    assert first["token_ids"] == engine.generate("the sea", SamplingParams(max_tokens=3))[0].token_ids
    wanted = engine.generate(messages, SamplingParams(max_tokens=5, temperature=1.0, seed=9))[0]
    assert (chat["prompt"], chat["token_ids"]) == (messages, wanted.token_ids)
    assert (ids["prompt"], ids["token_ids"], ids["stop_reason"], ids["finish_reason"]) == ([1, 7, 8], [10], 10, "stop")
    assert [len(line.get("logprobs", [])) for line in (first, chat, ids, last)] == [3, 5, 1, 0]
    assert set(first["logprobs"][0]) == {"token_id", "logprob", "rank", "top"}
    assert "4 answers, " in result.err


def test_a_chat_flag_makes_user_messages_of_the_lines(run, folder, engine, write):
    path = write("prompts.txt", "hello")
    result = run("generate", "-f", path, "-m", folder, "--chat", "--system", "be kind", "--max-tokens", 4)
    messages = [{"role": "system", "content": "be kind"}, {"role": "user", "content": "hello"}]
    (line,) = result.answers
    assert line["prompt"] == messages
    assert line["token_ids"] == engine.generate(messages, SamplingParams(max_tokens=4))[0].token_ids


def test_samples_of_one_prompt_follow_each_other(run, folder, write):
    path = write("prompts.jsonl", {"prompt": "a", "n": 2, "temperature": 1}, {"prompt": "b", "prompt_logprobs": 0})
    answers = run("generate", "-f", path, "-m", folder, "--max-tokens", 2).answers
    assert [(line["index"], line.get("sample")) for line in answers] == [(0, 0), (0, 1), (1, None)]
    assert answers[2]["prompt_logprobs"][0] is None
    assert answers[2]["prompt_logprobs"][1]["logprob"] <= 0


def test_out_takes_the_answers(run, folder, write, tmp_path):
    out = tmp_path / "answers.jsonl"
    result = run("generate", "-f", write("p.txt", *PROMPTS), "-m", folder, "--max-tokens", 1, "-o", out, "-q")
    assert (result.code, result.out, result.err) == (0, "", "")
    assert [json.loads(line)["prompt"] for line in out.read_text().splitlines()] == PROMPTS


def test_a_progress_bar_on_the_terminal_leaves_the_answers_whole(run, folder, write, monkeypatch):
    screen = Screen()
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setattr(sys, "stderr", screen)
    result = run("generate", "-f", write("p.txt", *PROMPTS), "-m", folder, "--max-tokens", 3, "--ignore-eos")
    assert [answer["index"] for answer in result.answers] == [0, 1, 2]
    for shown in ("3/3", "9 tokens", "3 answers, "):
        assert shown in screen.getvalue()


def test_answers_on_the_terminal_have_no_bar_between_them(run, folder, write, monkeypatch):
    screen = Screen()
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setattr(sys, "stderr", screen)
    monkeypatch.setattr(sys, "stdout", screen)
    run("generate", "-f", write("p.txt", "a"), "-m", folder, "--max-tokens", 1)
    assert "index" in screen.getvalue()
    assert "1/1" not in screen.getvalue()


@pytest.mark.parametrize("phase", range(1, minfer.NEWEST_PHASE + 1))
def test_what_is_answered_survives_an_interrupt(run, folder, write, tmp_path, monkeypatch, phase):
    kind = engine_class(phase)
    commit = kind.commit

    def interrupt(self, sequences, token_ids):
        commit(self, sequences, token_ids)
        if any(sequence.prompt == "wind" and len(sequence.output_ids) == 4 for sequence in sequences):
            raise KeyboardInterrupt

    monkeypatch.setattr(kind, "commit", interrupt)
    path = write("p.jsonl", {"prompt": "a", "max_tokens": 2}, {"prompt": "wind"}, {"prompt": "b", "max_tokens": 1})
    out = tmp_path / "answers.jsonl"
    result = run("generate", "-f", path, "-m", folder, "-o", out, "--phase", phase, "--ignore-eos")
    assert result.code == 130
    assert [json.loads(line)["index"] for line in out.read_text().splitlines()] == [0]


def test_the_lines_are_checked_before_any_is_run_and_the_output_is_kept(run, folder, write, tmp_path, monkeypatch):
    monkeypatch.setattr(DefaultEngine, "execute", None)
    out = tmp_path / "answers.jsonl"
    out.write_text("of last time\n")
    path = write("p.jsonl", {"prompt": "a"}, {"prompt_ids": [1, 5000]})
    result = run("generate", "-f", path, "-m", folder, "-o", out)
    assert result.code == 2
    assert f"{path}, line 2: token id 5000 is outside the vocabulary" in result.err
    assert out.read_text() == "of last time\n"


def test_a_request_that_fails_is_an_error_and_the_others_are_answered(run, folder, write, monkeypatch):
    commit = DefaultEngine.commit

    def fail_one(self, sequences, token_ids):
        commit(self, sequences, token_ids)
        for sequence in sequences:
            if sequence.prompt == "wind":
                sequence.error = RuntimeError("no more wind")

    monkeypatch.setattr(DefaultEngine, "commit", fail_one)
    result = run("generate", "-f", write("p.txt", "a", "wind"), "-m", folder, "--max-tokens", 1)
    assert result.code == 2
    assert [line.get("error") for line in result.answers] == [None, "RuntimeError: no more wind"]
    assert result.err.endswith("minfer: error: 1 of 2 requests failed: RuntimeError: no more wind\n")
