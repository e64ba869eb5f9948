"""`minfer grade` and what submissions leave behind: processes, ruined folders, odd names; no other's grade suffers."""

import os
import signal
import subprocess
import sys
import time
from types import SimpleNamespace

import pytest

import minfer
from minfer.cli import main
from minfer.core.errors import MinferError
from minfer.course.grader import child, submissions
from minfer.course.grader.child import Child, Limits
from minfer.course.grader.confine import namespaces
from minfer.course.grader.grader import Grader
from minfer.course.grader.guards import Forbidden, answers_hidden
from minfer.course.grader.journal import Journal
from minfer.course.grader.scratch import scratch
from minfer.course.grader.submissions import Submission, Unusable
from minfer.course.marks.outputs import Outputs
from minfer.course.marks.report import Report, printable
from minfer.course.source.notebook import NotANotebook, Notebook
from minfer.course.source.outline import Outline
from tests.course.toy import toy_course

DETACHES = """
import ctypes, os, time
ctypes.CDLL(None).prctl(1, 0)  # PR_SET_PDEATHSIG: stay when the parent ends
os.setsid() if os.getsid(0) != os.getpid() else None
print("detached", flush=True)
time.sleep(600)
"""


def test_a_process_that_has_left_its_group_and_its_parent_is_ended_all_the_same():
    if not namespaces():
        pytest.skip("this system has no namespaces")
    command = [*namespaces(), sys.executable, "-S", "-c", DETACHES]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, start_new_session=True)
    assert process.stdout.readline() == b"detached\n"
    child._kill(process)
    assert process.stdout.read() == b""  # nobody holds the other end any more
    process.stdout.close()


def test_a_folder_nested_deeper_than_python_calls_itself_is_removed():
    here, limit = os.getcwd(), sys.getrecursionlimit()
    sys.setrecursionlimit(400)  # a thousand folders would take the system seconds
    try:
        with scratch("minfer-test-") as folder:
            os.chdir(folder)
            for _ in range(500):
                os.mkdir("d")
                os.chdir("d")
            os.chdir(here)
    finally:
        sys.setrecursionlimit(limit)
    assert not folder.exists()


def test_a_copy_of_the_process_writes_no_results(tmp_path):
    report = Report({"spec": "", "described": "", "sha": ""}, 17, {})
    written = []
    outputs = Outputs([(tmp_path, lambda path, report: written.append(path))], tmp_path / "journal")
    outputs.planned(report)
    pid = os.fork()
    if pid == 0:
        outputs.finish(report)
        os._exit(len(written))
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 1
    outputs.started("t")
    assert (tmp_path / "journal").read_text().count("event") == 2


def test_a_journal_is_read_though_its_file_is_gone_and_the_next_child_gets_a_new_one(tmp_path):
    journal = Journal(tmp_path / "journal.jsonl", losses=9)
    journal.new_child()
    with open(journal.path, "a") as file:
        file.write('{"event": "start", "test": "a"}\n')
    journal.path.unlink()
    os.mkfifo(journal.path)
    journal.follow()
    assert journal.running == "a"
    journal.new_child()
    with open(journal.path, "a") as file:
        file.write('{"event": "start", "test": "b"}\n')
    journal.follow()
    journal.close()
    assert journal.running == "b"


def confined(folder):
    folder.mkdir()
    return Child([], folder, folder, Limits(seconds=9))


def test_a_child_s_folders_are_made_again_whatever_the_last_one_has_put_there(tmp_path):
    one = confined(tmp_path / "one")
    (one.folder / "cwd").symlink_to("/")
    (one.folder / "tmp").touch()
    assert one._scratch("cwd").resolve() == one.folder / "cwd"
    assert one._scratch("tmp").is_dir()
    for name in ("cwd", "tmp"):
        (one.folder / name).rmdir()
    one.folder.rmdir()
    assert one._scratch("cwd").is_dir()


def test_a_folder_that_cannot_be_made_again_costs_its_own_submission_only(tmp_path):
    one = confined(tmp_path / "one")
    one.folder.rmdir()
    one.folder.touch()
    assert one.run().startswith("given up: its folder cannot be made again (Not a directory: ")


def test_what_keeps_a_process_that_has_told_all_is_not_waited_for(tmp_path):
    one = confined(tmp_path / "one")
    one.journal.ended, one.journal.since = True, time.monotonic() - child.GRACE - 1
    assert one._watch(SimpleNamespace(poll=lambda: None)) == ""


def test_the_answer_is_not_to_be_had_by_a_link_either(tmp_path):
    (tmp_path / "notes.txt").symlink_to(f"{minfer.__path__[0]}/phase1/engine.py")
    with answers_hidden(1), pytest.raises(Forbidden, match=r"phase1/engine\.py, the answer to what is graded"):
        (tmp_path / "notes.txt").read_text()


def test_a_submission_ends_where_its_folder_ends(tmp_path):
    (tmp_path / "honest").mkdir()
    (tmp_path / "honest" / "phase1.py").touch()
    (tmp_path / "idle").mkdir()
    (tmp_path / "idle" / "phase1.py").symlink_to("../honest/phase1.py")
    with pytest.raises(Unusable, match=r"phase1\.py is a link to what is not in the submission"):
        Submission("idle", tmp_path / "idle").engine(1)
    tmp_path.joinpath("deep", *["d"] * 70).mkdir(parents=True)
    with pytest.raises(Unusable, match="more than 20,000 files, or folders more than 64 deep"):
        Submission("deep", tmp_path / "deep").engine(1)


def test_a_link_to_a_large_file_is_as_large_as_the_file(tmp_path):
    with open(tmp_path / "large", "wb") as file:
        file.truncate(submissions.MOST_BYTES + 1)  # takes no room on the disk
    (tmp_path / "link.py").symlink_to("large")
    with pytest.raises(Unusable, match="it has 200 MB, more than 200"):
        Submission("link", tmp_path / "link.py").copy(tmp_path)


def test_no_two_submissions_have_one_name_and_each_name_is_one_line_and_one_folder(tmp_path):
    for name in ("hw.py", "hw.ipynb", "hw.py.bak", "alone.py", "a\nb", "\x1b[2J", os.fsdecode(b"\xe9" * 120)):
        (tmp_path / name).touch()
    (tmp_path / ("x" * 250)).mkdir()
    names = [one.name for one in submissions.find(tmp_path)]
    assert {"hw.py", "hw.ipynb", "hw.py.bak", "alone", r"a\nb", r"\x1b[2J"} < {*names}
    assert len({*names}) == len(names) == 8
    for name in names:
        (tmp_path / "out" / name).mkdir(parents=True)


def test_a_submission_that_is_named_like_the_grades_is_refused_before_any_is_graded(tmp_path):
    root = toy_course(tmp_path / "toy", ["one", "two"])
    out = tmp_path / "out"
    out.mkdir()
    (out / "taken").touch()
    grader = Grader(root, 1, out, out / "grades.csv", 17)
    for name, why in (("grades.csv", "is named like the file"), ("taken", "taken is in the way of")):
        with pytest.raises(MinferError, match=why):
            grader.run([Submission(name, tmp_path)], 1)


def test_what_a_terminal_would_obey_is_shown():
    assert printable("a\x1b[2J\r\x9b\tb\nc") == "a\\x1b[2J\\x0d\\x9b\tb\nc"


def test_what_is_nested_too_deeply_is_refused_as_what_it_is(tmp_path):
    (tmp_path / "deep.ipynb").write_text("[" * 100_000)
    with pytest.raises(NotANotebook, match="RecursionError"):
        Notebook.read(tmp_path / "deep.ipynb")
    for text in ("x = " + "-" * 100_000 + "1", "x = a" + ".a" * 100_000):
        (tmp_path / "deep.py").write_text(text)
        assert Outline.read(tmp_path / "deep.py").error.msg == "it is nested too deeply for Python"


def test_a_scheduler_s_signal_ends_the_grading_like_ctrl_c(tmp_path, monkeypatch, capfd):
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "one.py").touch()

    def run(grader, found, jobs):
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(9)

    monkeypatch.setattr(Grader, "run", run)
    before = signal.signal(signal.SIGTERM, signal.SIG_IGN)  # what would end the test without it
    try:
        assert main(["grade", str(tmp_path / "in"), "--phase", "1", "--out", str(tmp_path / "out")]) == 130
        assert signal.getsignal(signal.SIGTERM) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGTERM, before)
