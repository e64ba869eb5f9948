"""The lessons tell the truth: commands run, their output is as shown, links resolve, tasks and figures are current."""

import contextlib
import io
import json
import re
import shlex
import subprocess

import pytest
import torch

from minfer.bench.claims import throughput
from minfer.bench.ledger import runs
from minfer.bench.sample import Spread
from minfer.cli import SUMMARIES, UsageError, _build, main
from minfer.course.lessons.exercise import FILE, Exercise
from scripts.lesson_tasks import block as tasks_block
from scripts.lesson_tasks import current
from tests.course.blocks import ROOT, anchors, blocks, lessons, links, name, prose

PAGES = lessons()
LESSONS = [page for page in PAGES if page.parent.name.startswith("phase") and page.parent.name != "phases"]
LANDING: set[str] = set()
"""Commands that lessons may name before they are there; they are run as soon as they are."""
QUOTED = re.compile(r"^(\S.*?) {2,}([\d.]+) tokens/s$", re.MULTILINE)
CODE = re.compile(r"\bP\d+-\d+\b")
SECTIONS = (
    *("The problem", "The idea", "What it costs", "The contract", "Tasks", "Check"),
    *("Common mistakes", "When it loses", "Exit question"),
)


@pytest.fixture(autouse=True)
def alone(tmp_path, monkeypatch):
    """One thread, an empty model cache, an empty folder, and a terminal of one width."""
    monkeypatch.setenv("MINFER_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("COLUMNS", "100")
    monkeypatch.chdir(tmp_path)
    for folder in ("phases", "tests"):
        (tmp_path / folder).symlink_to(ROOT / folder)
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def command_name(line):
    """`diff` of `minfer diff 2 3`; None for lines of other programs."""
    words = shlex.split(line)
    return words[1] if words[0] == "minfer" and len(words) > 1 and not words[1].startswith("-") else None


def is_absent(line):
    return command_name(line) not in (None, *SUMMARIES)


def unbuilt(text):
    """Phases that the text names and that are not there yet: what it says of them cannot be checked."""
    named = set(re.findall(r"\bminfer[./]phase(\d+)", text))
    return {number for number in named if not (ROOT / "minfer" / f"phase{number}" / "engine.py").exists()}


def run_line(line):
    """What a command of a bash block writes; `minfer` is run within this process, which has torch already."""
    if is_absent(line):
        assert command_name(line) in LANDING, f"there is no such command: {line}"
        return ""
    if line.startswith("minfer ") and not re.search(r"[|>&;$`]", line):
        made = io.StringIO()
        with contextlib.redirect_stdout(made), contextlib.redirect_stderr(made):
            made.reconfigure = lambda **settings: None
            code = main(shlex.split(line)[1:])
        assert code == 0, f"{line}\n{made.getvalue()}"
        return made.getvalue()
    done = subprocess.run(["bash", "-ec", line], capture_output=True, text=True, timeout=200, check=False)
    assert done.returncode == 0, f"{line}\n{done.stderr}"
    return done.stdout + done.stderr


def run_python(text, namespace):
    made = io.StringIO()
    with contextlib.redirect_stdout(made):
        exec(compile(text, "lesson", "exec"), namespace)
    return made.getvalue()


def assert_shown(text, output, page):
    """Each line of `text` is in `output`, in this order."""
    rest = iter([line.rstrip() for line in output.splitlines()])
    for line in text.splitlines():
        if line.strip() != "…":
            assert line.rstrip() in rest, f"{name(page)} shows\n{line}\nbut the block before it gives\n{output}"


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_what_a_page_runs_gives_what_it_shows(page):
    output, namespace = "", {}
    for block in blocks(page):
        if block.language == "bash" and not block.note:
            output = "".join(map(run_line, block.commands))
        elif block.language == "python" and not block.note:
            output = None if unbuilt(block.text) else run_python(block.text, namespace)
        elif block.language == "text" and not block.note and output is not None:
            assert_shown(block.text, output, page)


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_what_is_not_run_says_why_and_can_be_run(page):
    for block in blocks(page):
        reason = re.fullmatch(r"(no-run|measured): (.{8,})", block.note)
        assert reason or not block.note, f"```{block.language} {block.note}: say no-run: or measured:, and why"
        assert block.language in ("bash", "python", "text"), f"a block of {block.language or 'no language'}"
        for line in block.commands if block.language == "bash" else ():
            words = shlex.split(line)
            if words[0] == "minfer" and not is_absent(line):
                parse(words[1:], line)
            for folder in [word for word in words if words[0] == "pytest" and word.startswith("tests/")]:
                phase = folder.removeprefix("tests/")
                assert (ROOT / folder).exists() or unbuilt(f"minfer.{phase}"), f"{line}: there is no {folder}"


def parse(words, line):
    """The command line has no unknown flag and no value of a wrong type."""
    command, rest = _build(words[0]), words[1:]
    while hasattr(command, "commands") and rest:
        command, rest = command.commands[rest[0]], rest[1:]
    try:
        command.make_context(line, rest, resilient_parsing=False)
    except UsageError as error:
        pytest.fail(f"{line}: {error.format_message()}")


def test_what_is_not_there_yet_is_listed(record_property, capsys):
    named = {line for page in PAGES for one in blocks(page) if one.language == "bash" for line in one.commands}
    absent = sorted(line for line in named if is_absent(line))
    phases = sorted(set().union(*(unbuilt(page.read_text(encoding="utf-8")) for page in PAGES)))
    record_property("not run, not there yet", "; ".join([*absent, *phases]))
    with capsys.disabled():
        for what, missing in (("commands", absent), ("phases", phases)):
            if missing:
                print(f"\nnot run, since these {what} are not there yet:", *missing, sep="\n    ")
    assert {command_name(line) for line in absent} <= LANDING


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_links_resolve(page):
    for link in links(page):
        if re.match(r"https?://", link) or unbuilt(link):
            continue
        path, _, anchor = link.partition("#")
        target = (page.parent / path).resolve() if path else page
        assert target.exists(), f"{name(page)}: {link}"
        if anchor:
            assert anchor in anchors(target), f"{name(page)}: {link}: {sorted(anchors(target))}"


@pytest.mark.parametrize("lesson", LESSONS, ids=name)
def test_a_lesson_has_its_parts_in_their_order(lesson):
    text = prose(lesson)
    assert tuple(re.findall(r"^## (.*)$", text, re.MULTILINE)) == SECTIONS
    assert ".svg)" in text
    lines = lesson.read_text(encoding="utf-8").replace(current(lesson), "").splitlines()
    assert 90 <= len(lines) <= 180, f"{len(lines)} lines without the tasks: one or two screens of reading"
    assert max(map(len, lines)) <= 160


@pytest.mark.parametrize("lesson", LESSONS, ids=name)
def test_what_is_quoted_of_a_ledger_is_one_of_its_parts(lesson):
    ledgers = re.findall(r"minfer bench show (phases/\S+\.json)", lesson.read_text(encoding="utf-8"))
    parts = [part for one in ledgers for part in json.loads((ROOT / one).read_text(encoding="utf-8"))["parts"]]
    for block in blocks(lesson):
        quoted = dict(QUOTED.findall(block.text)) if parts and block.note.startswith("measured") else {}
        shown = [medians(part, quoted) for part in parts]
        assert not quoted or quoted in shown, f"{name(lesson)} quotes {quoted}, {', '.join(ledgers)} has {shown}"


def medians(part, quoted):
    """Of a ledger's part, the figures of the rows that are quoted, with as many digits."""
    rows = {row["name"]: runs(row) for row in part["rows"] if row["name"] in quoted and row["samples"]}
    figures = {row: Spread.of(map(throughput(part)[1], samples)).median for row, samples in rows.items()}
    return {row: f"{figure:.{len(quoted[row].partition('.')[2])}f}" for row, figure in figures.items()}


@pytest.mark.parametrize("lesson", LESSONS, ids=name)
def test_codes_of_mistakes_are_those_of_tests(lesson):
    folder = ROOT / "tests" / lesson.parent.name
    tested = "".join(path.read_text(encoding="utf-8") for path in folder.glob("*.py"))
    number = lesson.parent.name[5:]
    for code in set(CODE.findall(prose(lesson))) if f"P{number}_" in tested else ():
        if code.startswith(f"P{number}-"):
            assert code.replace("-", "_") in tested, f"no test has the code {code}"


@pytest.mark.parametrize("lesson", LESSONS, ids=name)
def test_the_tasks_are_those_of_the_exercise(lesson):
    if not (lesson.parent / FILE).exists():
        assert "not yet" in current(lesson), "tasks are made from exercise.toml: python -m scripts.lesson_tasks"
        return
    exercise = Exercise.read(int(lesson.parent.name[5:]), ROOT / "phases")
    assert current(lesson) == tasks_block(exercise), "run python -m scripts.lesson_tasks"
