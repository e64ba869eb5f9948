"""What a folded method does is what Python's own inheritance does."""

from pathlib import Path

import pytest

from minfer.course.lectures.folding import Folding
from minfer.course.source.lineage import Ancestor, Lineage
from minfer.course.source.module import Module
from minfer.course.source.rewrite import renamed

CASES = {
    "a call as the last return": (
        """
        class A:
            def m(self, x):
                y = x + 1
                return [y, x]
        class B(A):
            def m(self, x):
                if x > 3:
                    return super().m(x)
                return "small"
        """,
        [],
    ),
    "a call as a statement, other names in it": (
        """
        class A:
            def m(self, x):
                z = x * 2
                self.log = [z]
        class B(A):
            def m(self, x):
                self.seen = x
                super().m(x)
                return self.log + [self.seen]
        """,
        [],
    ),
    "a body whose names are used afterwards": (
        """
        class A:
            def m(self, x):
                y = x * 2
                self.log = [y]
        class B(A):
            def m(self, x):
                y = 5
                super().m(x)
                return self.log + [y]
        """,
        ["m_of_phase1"],
    ),
    "a body that returns in its middle": (
        """
        class A:
            def m(self, x):
                if x > 3:
                    return x
                return -x
        class B(A):
            def m(self, x):
                got = super().m(x)
                return got * 10
        """,
        ["m_of_phase1"],
    ),
    "another argument than the parameter": (
        """
        class A:
            def m(self, x):
                x = x + 1
                return x
        class B(A):
            def m(self, x):
                got = super().m(x * 7)
                return [got]
        """,
        [],
    ),
    "an argument whose old value is used afterwards": (
        """
        class A:
            def m(self, x):
                return x + 1
        class B(A):
            def m(self, x):
                got = super().m(x * 7)
                return [got, x]
        """,
        ["m_of_phase1"],
    ),
    "an expression within an expression": (
        """
        class A:
            def m(self, x):
                return x + 1
        class B(A):
            def m(self, x):
                return 10 * super().m(x)
        """,
        [],
    ),
    "three levels, and a call from another method": (
        """
        class A:
            def m(self, x):
                return [x]
        class B(A):
            def m(self, x):
                return super().m(x)
            def other(self, x):
                return super().m(x) + [0]
        class C(B):
            def m(self, x):
                made = super().m(x)
                return made + self.other(x)
        """,
        [],
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_it_does_what_inheritance_does(name):
    text, kept = CASES[name]
    flat, folding = folded(text)
    assert "super()" not in flat, flat
    assert list(folding.kept) == kept, flat
    for x in (1, 4):
        assert result(flat, x) == result(dedented(text), x), flat


def test_a_super_that_leaves_the_lineage_stays():
    text = """
        class A(dict):
            def m(self, x):
                return super().get(x, "none")
        class B(A):
            def m(self, x):
                return super().m(x)
        """
    flat, _ = folded(text, "dict")
    assert flat.count('super().get(x, "none")') == 1
    assert result(flat, 3) == "none"


def folded(text, base=""):
    """The classes of `text`, of phases 1, 2 …, as one class `Last` without inheritance."""
    made = Module("made", dedented(text), Path("made.py"))
    ancestors = []
    for phase, node in enumerate(made.tree.body, 1):
        ancestors.append(Ancestor(Module(f"minfer.phase{phase}.engine", made.text, made.path), node))
    lineage = Lineage(ancestors)
    folding = Folding(lineage, lambda member: renamed(member.statement, {}))
    names = dict.fromkeys(name for one in ancestors for name in one.members)
    methods = [folding.fold(name) for name in names]
    body = "\n".join(f"    {line}" for method in [*methods, *folding.kept.values()] for line in method.splitlines())
    return f"class Last({base}):\n{body}\n", folding


def result(text, x):
    """What `m(x)` of the last class returns."""
    names = {}
    exec(text, names)
    return list(names.values())[-1]().m(x)


def dedented(text):
    """The text with its first class at the left."""
    return "\n".join(line[8:] for line in text.strip("\n").splitlines())
