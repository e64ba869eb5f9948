"""Bad input is one line on standard error that says what to do, and exit code 2."""

import errno
import json
import os
import shutil

import pytest

import minfer

BAD_COMMANDS = [
    (["optoins"], "No such command 'optoins'. Did you mean 'options'? (see: minfer --help)"),
    (["--nonsense"], "No such option: --nonsense"),
    (["pull"], "Missing argument"),
    (["pull", "../x"], "'../x' is not the name of a model"),
    (["pull", "nosuch"], "no model 'nosuch' to pull: use smollm2 or ORG/NAME"),
    (["options", "99"], f"there is no phase 99: choose one of 1 to {minfer.NEWEST_PHASE}"),
    (["options", "two"], "Invalid value for 'phase'"),
    (["memory", "nosuch"], "no model 'nosuch'"),
]
BAD_FLAGS = [
    (["--top-kk", "3"], "No such option: --top-kk"),
    (["--phase", "0"], f"there is no phase 0: choose one of 1 to {minfer.NEWEST_PHASE}"),
    (["--phase", "99"], f"there is no phase 99: choose one of 1 to {minfer.NEWEST_PHASE}"),
    (["--phase", "x"], "Invalid value for '--phase'"),
    (["--top-k", "many"], "--top-k is 'many': give a whole number"),
    (["--top-k", "-1"], "top_k is -1: it must be a whole number of at least 0"),
    (["--temperature", "warm"], "--temperature is 'warm': give a number"),
    (["--temperature", "nan"], "temperature is nan: it must be a finite number of at least 0"),
    (["--top-p", "0"], "top_p is 0.0: it must be a finite number above 0 and at most 1"),
    (["--max-tokens", "1.5"], "--max-tokens is '1.5': give a whole number"),
    (["--min-tokens", "9", "--max-tokens", "3"], "min_tokens is 9, more than max_tokens, which is 3"),
    (["--logit-bias", "5"], "--logit-bias is '5': write it as <int=float>"),
    (["--logit-bias", "a=5"], "--logit-bias is 'a': give a whole number"),
    (["--logit-bias", "5000=1"], "logit_bias names token 5000: the model's vocabulary has"),
    (["--stop-token-ids", "x"], "--stop-token-ids is 'x': give a whole number"),
    (["--stop", ""], "an empty string would stop every text at its start"),
    (["--n", "0"], "n is 0: it must be a whole number of at least 1"),
    (["--seed", "none", "--n", "none"], "--n is 'none': give a whole number"),
    (["--dtype", "float3"], "dtype 'float3' is unknown: use auto, float64, float32, float16, bfloat16"),
    (["--device", "tpu"], "device 'tpu' is"),
    (["--context", "1"], "context = 1: give an integer of at least 2"),
    (["--context", "3"], "tokens, the context is 3"),
    (["--file", "prompts.txt"], "a prompt and --file were given: give one of them"),
    (["--out", "answers.jsonl"], "--out is for the answers to --file"),
    (["--system", "be kind"], "--system is the first message of a chat: add --chat"),
    (["more words"], "Got unexpected extra argument"),
]
BAD_LINES = [
    ("not json", "not JSON: Expecting value"),
    ("[1, 2]", "not a JSON object: write it like"),
    ({}, "give exactly one of prompt, messages, prompt_ids, not none"),
    ({"prompt": "a", "prompt_ids": [1]}, "give exactly one of prompt, messages, prompt_ids, not prompt and prompt_ids"),
    ({"prompt": ["a"]}, 'prompt is ["a"]: it must be a string'),
    ({"prompt_ids": [1, "a"]}, 'prompt_ids is [1, "a"]: it must be a list of token ids'),
    ({"prompt_ids": [True]}, "prompt_ids is [true]: it must be a list of token ids"),
    ({"prompt_ids": []}, "prompt_ids is []: it must be a list of token ids"),
    ({"messages": "hi"}, 'messages is "hi": it must be a list of chat messages'),
    ({"messages": [{"role": "user"}]}, "content"),
    ({"prompt": "a", "temprature": 1}, "unknown key 'temprature' (did you mean temperature?)"),
    ({"prompt": "a", "temperature": "hot"}, "temperature is 'hot': it must be a finite number"),
    ({"prompt": "a", "logit_bias": {"x": 1}}, "a token id in logit_bias is 'x'"),
    ({"prompt": "a", "logit_bias": [1]}, "logit_bias is [1]: it must be a mapping"),
    ({"prompt": "a" * 4000}, "tokens, the context is 3000"),
    ({"prompt": "\ud800"}, "Unicode"),
]


def words(value):
    """The words of a command line as the test's name."""
    return " ".join(value) if isinstance(value, list) else ""


def refused(result, message):
    """The result is one line of error with `message` in it, code 2, nothing on standard output."""
    assert result.err.startswith("minfer: error: "), result
    assert result.err.count("\n") == 1, result.err
    assert message in result.err
    assert (result.code, result.out) == (2, "")


@pytest.mark.parametrize(("args", "message"), BAD_COMMANDS, ids=words)
def test_bad_command(run, args, message):
    refused(run(*args), message)


@pytest.mark.parametrize(("flags", "message"), BAD_FLAGS, ids=words)
def test_bad_flag(run, folder, flags, message):
    refused(run("generate", "the sea", "-m", folder, *flags), message)


@pytest.mark.parametrize(("line", "message"), BAD_LINES, ids=[message[:40] for _, message in BAD_LINES])
def test_bad_line_of_a_file(run, folder, tmp_path, line, message):
    path = tmp_path / "prompts.jsonl"
    path.write_text('{"prompt": "a"}\n\n' + (line if isinstance(line, str) else json.dumps(line)) + "\n")
    result = run("generate", "--file", path, "-m", folder)
    refused(result, message)
    assert f"{path}, line 3: " in result.err


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, "cannot read prompts.txt: No such file or directory"),
        (b"", "prompts.txt holds no prompts: write one a line"),
        (b" \n\n", "prompts.txt holds no prompts: write one a line"),
        (b"good\nbad \xff\n", "prompts.txt is not UTF-8 text: byte 9 is 0xff"),
    ],
)
def test_bad_file(run, folder, tmp_path, content, message):
    if content is not None:
        (tmp_path / "prompts.txt").write_bytes(content)
    refused(run("generate", "-f", "prompts.txt", "-m", folder), message)


def test_bad_output_file(run, folder, tmp_path):
    (tmp_path / "p.txt").write_text("a\n")
    refused(run("generate", "-f", "p.txt", "-m", folder, "-o", "no/such/file"), "there is no folder no/such")
    refused(run("generate", "-f", "p.txt", "-m", folder, "-o", tmp_path), f"cannot write {tmp_path}: Is a directory")


@pytest.mark.parametrize("command", [("flatten", "1", "--out"), ("replay",)])
def test_a_folder_in_place_of_a_file_is_one_line_that_names_it(run, tmp_path, command):
    refused(run(*command, tmp_path), f"{tmp_path}: Is a directory")


def test_a_full_disk_is_one_line_that_names_the_file(run, monkeypatch, tmp_path):
    def full(source, out):
        raise OSError(errno.ENOSPC, "No space left on device", source, None, str(out))

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(shutil, "copyfile", full)
    refused(run("start", "1"), "work/phase1.py: No space left on device")


def test_bad_prompt(run, folder):
    refused(run("generate", "-m", folder), f'no prompt: give one, as in minfer generate -m {folder} "Once upon a time"')
    refused(run("generate", "-m", folder, stdin=b""), "no prompt: give one")
    refused(run("generate", "-", "-m", folder, stdin=b"\xff"), "standard input is not UTF-8 text: byte 0 is 0xff")
    refused(run("generate", os.fsdecode(b"ab\xff"), "-m", folder), "the prompt is not UTF-8 text: byte 2 is 0xff")
    refused(run("generate", "the sea", "--chat", "--system", "", "-m", "tiny"), "chat template")


@pytest.mark.parametrize("model", ["nosuch", "random:nosuch", "./nowhere"])
def test_bad_model(run, model):
    refused(run("generate", "hi", "-m", model), "no")


def test_a_folder_without_weights(run, tmp_path):
    refused(run("generate", "hi", "-m", tmp_path), f"{tmp_path} is empty")


@pytest.mark.skipif(minfer.NEWEST_PHASE < 5, reason="no phase has an option of its own yet")
def test_an_option_that_the_phase_lacks_names_those_it_has(run, folder):
    result = run("generate", "hi", "-m", folder, "--phase", 3, "--block-size", 4)
    refused(result, "phase 3 has no --block-size: it comes with phase 5; phase 3 has --device, --dtype, --context")
    result = run("generate", "hi", "-m", folder, "--phase", 4, "--no-share-prefixes")
    refused(result, "phase 4 has no --no-share-prefixes: it comes with phase 5; phase 4 has --device, ")


def test_a_folder_in_place_of_an_output_file_is_one_line_that_names_it(run, tmp_path):
    refused(run("flatten", "1", "--out", tmp_path), f"{tmp_path}: Is a directory")
