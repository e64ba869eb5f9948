"""The diff shows what Python's own classes say, warns of what still runs, and its page needs nothing else."""

import inspect
import re
from html import unescape
from html.parser import HTMLParser

import pytest

from minfer.cli import main
from minfer.core.errors import MinferError
from minfer.course.grader.grading import reference
from minfer.course.lectures.diff import PhaseDiff
from minfer.course.lectures.diff_page import coloured, page
from minfer.course.lectures.diff_text import markdown
from minfer.course.lectures.hooks import rows
from minfer.course.source.library import phases
from minfer.course.source.lineage import previous

VOID = {"meta", "br"}
BUILT = [phase for phase in phases() if previous(phase)]


@pytest.mark.parametrize("phase", BUILT)
def test_methods_are_those_of_the_classes(phase):
    new, old = reference(phase), reference(previous(phase))
    own = {name for cls in classes_of(phase) for name, one in vars(cls).items() if is_method(one)}
    diff = PhaseDiff.of(previous(phase), phase)
    assert {method.name for method in diff.overridden} == {name for name in own if hasattr(old, name)}
    assert {method.name for method in diff.added} == {name for name in own if not hasattr(old, name)}
    for method in diff.overridden:
        before = inspect.getattr_static(old, method.name)
        assert method.old_text == inspect.cleandoc("\n" + source(before)), method.name
        assert method.text == inspect.cleandoc("\n" + source(inspect.getattr_static(new, method.name)))


def test_over_several_phases_the_last_word_counts():
    diff = PhaseDiff.of(1, 4)
    prepare = next(method for method in diff.methods if method.name == "prepare")
    assert (prepare.old.owner.phase, prepare.new.owner.phase) == (1, 4)
    assert {"admit", "groups", "build_model"} <= {method.name for method in diff.overridden}


def test_what_super_still_runs_is_named():
    (admit,) = [method for method in PhaseDiff.of(2, 3).methods if method.name == "admit"]
    line = inspect.getsourcelines(reference(1).admit)[1]
    assert admit.warnings() == [f"super().admit() still runs phase 1's: minfer/phase1/engine.py:{line}"]
    (groups, _) = PhaseDiff.of(3, 4).methods
    assert groups.warnings() == []


def test_new_options_have_their_defaults():
    (option,) = PhaseDiff.of(3, 4).options
    assert (option.name, option.type, option.default) == ("max_batch", "int", "16")


def test_hidden_lines_tell_nothing_and_all_else_is_there():
    shown, hidden = (markdown(PhaseDiff.of(3, 4), hide_added=hide) for hide in (False, True))
    assert "self.cache.keep(sequences)" in shown
    assert len(shown.splitlines()) == len(hidden.splitlines())
    added = [line for line in hidden.splitlines() if line.startswith("+")]
    assert added
    assert not any(re.search(r"\w", line) for line in added)
    assert "-     return [[sequence] for sequence in sequences]" in hidden


@pytest.mark.parametrize("phase", [2, 3, 5, 6])
def test_the_page_is_whole_and_needs_nothing_else(phase):
    text = page(PhaseDiff.of(previous(phase), phase))
    assert "http" not in text
    parser = Tags()
    parser.feed(text)
    assert parser.open == []


@pytest.mark.parametrize("phase", BUILT)
def test_colours_change_no_letter(phase):
    for method in PhaseDiff.of(previous(phase), phase).methods:
        made = "\n".join(coloured(method.text))
        assert unescape(re.sub(r"</?span[^>]*>", "", made)) == method.text.replace('"', '"')


def test_a_line_of_each_kind_stands_in_its_column():
    text = page(PhaseDiff.of(3, 4))
    assert re.search(r'<td class="gone">[^\n]*return</span> \[\[sequence\]', text)
    assert re.search(r'class="come">[^\n]*self\.cache\.keep\(sequences\)', text)


def test_hooks_are_marked_where_a_class_defines_them():
    numbers = phases()
    for name, marks in rows().items():
        defining = [phase for phase in numbers if any(name in vars(cls) for cls in classes_of(phase))]
        assert [phase for phase, mark in zip(numbers, marks, strict=True) if mark.strip()] == defining


@pytest.mark.parametrize(
    ("arguments", "said"),
    [(["3", "2"], "phase 2 is not built on phase 3"), (["3", "77"], "there is no phase 77"), (["77"], "no phase 77")],
)
def test_phases_that_are_not_one_after_the_other_are_refused(arguments, said, capsys):
    assert main(["diff", *arguments]) == 2
    assert said in capsys.readouterr().err


def test_the_commands_print_and_write(tmp_path, capsys):
    out = tmp_path / "page.html"
    assert main(["diff", "3", "4"]) == 0
    assert "~ prepare" in capsys.readouterr().out
    assert main(["diff", "4", "--stat"]) == 0
    assert "class BatchKVCache" in capsys.readouterr().out
    assert main(["diff", "4", "--html", str(out)]) == 0
    assert "Phase 3 → phase 4" in out.read_text()
    assert main(["hooks", "--markdown"]) == 0
    assert "| `prepare` |" in capsys.readouterr().out
    assert main(["flatten", "2", "-o", str(tmp_path / "no" / "x.py")]) == 2


def test_a_class_that_a_phase_does_not_export_is_refused():
    from minfer.course.source.lineage import Lineage

    with pytest.raises(MinferError, match=re.escape("minfer.phase2 has no class Scheduler")):
        Lineage.of(2, "Scheduler")


class Tags(HTMLParser):
    """Keeps the elements that are open."""

    def __init__(self):
        super().__init__()
        self.open = []

    def handle_starttag(self, tag, attrs):
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag


def classes_of(phase):
    """The phase's own Engine, and what it is made of within the phase."""
    return [cls for cls in reference(phase).__mro__ if cls.__module__.startswith(f"minfer.phase{phase}.")]


def is_method(one):
    """Whether a class's attribute is a method or a property."""
    return inspect.isfunction(one) or isinstance(one, classmethod | staticmethod | property)


def source(one):
    """The source of a method, whatever wraps it."""
    function = one.fget if isinstance(one, property) else one
    return inspect.getsource(inspect.unwrap(getattr(function, "__func__", function))).rstrip("\n")
