"""A diff as one HTML page that needs nothing else: old and new beside each other, light and dark, fit to project."""

import difflib
import io
import tokenize
from collections.abc import Iterable, Iterator
from html import escape
from keyword import iskeyword, issoftkeyword
from pathlib import Path
from string import Template

import minfer
from minfer.course.lectures.diff import MethodDiff, Noun, PhaseDiff
from minfer.course.lectures.diff_text import counts
from minfer.course.source.library import module

TEMPLATE = Path(minfer.__file__).parent / "assets" / "lecture.html"
KINDS = {tokenize.COMMENT: "c", tokenize.STRING: "s", tokenize.NUMBER: "n"}

Pair = tuple[str, str, str, str]
"""A row: class and HTML of the left side, class and HTML of the right one."""


def page(diff: PhaseDiff, hide_added: bool = False, effect: str = "") -> str:
    """The page; `effect`: HTML of what the change does, to stand above what it is."""
    parts = [effect] if effect else []
    parts += _section("overridden", "Overridden", map(_overridden, diff.overridden))
    parts += _section("new", "New methods", map(_added, diff.added))
    paths = dict.fromkeys(noun.module.path for noun in diff.nouns)
    files = ([noun for noun in diff.nouns if noun.module.path == path] for path in paths)
    parts += _section("nouns", "New beside the Engine", map(_file, files))
    if diff.options:
        rows = ((one.name, one.type, one.default, one.about) for one in diff.options)
        parts += _section("options", "New options", [_plain_table(rows)])
    links = [f'<a href="#{name}">{title}</a>' for name, title in _links(diff, bool(effect))]
    return Template(TEMPLATE.read_text(encoding="utf-8")).substitute(
        title=escape(diff.title),
        lead=f"{escape(module(f'minfer.phase{diff.after}').doc)}<br>{escape(counts(diff))}.",
        body_class=' class="hide"' if hide_added else "",
        links=" ".join(links),
        content="\n".join(parts),
    )


def coloured(text: str) -> list[str]:
    """Python source as lines of HTML, with keywords, strings, numbers and comments marked."""
    lines = text.splitlines()
    made = [""] * len(lines)
    done = [0] * len(lines)
    for kind, start, end in _tokens(text):
        for row in range(start[0] - 1, end[0]):
            first = start[1] if row == start[0] - 1 else 0
            last = end[1] if row == end[0] - 1 else len(lines[row])
            made[row] += escape(lines[row][done[row] : first], quote=False)
            made[row] += f'<span class="{kind}">{escape(lines[row][first:last], quote=False)}</span>'
            done[row] = last
    return [html + escape(line[at:], quote=False) for html, line, at in zip(made, lines, done, strict=True)]


def _tokens(text: str) -> Iterator[tuple[str, tuple[int, int], tuple[int, int]]]:
    open_f_string: tuple[int, int] | None = None
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        name = tokenize.tok_name[token.type]
        if name == "FSTRING_START":  # one token up to Python 3.11
            open_f_string = open_f_string or token.start
        elif name == "FSTRING_END" and open_f_string is not None:
            yield "s", open_f_string, token.end
            open_f_string = None
        elif open_f_string is None and token.type in KINDS:
            yield KINDS[token.type], token.start, token.end
        elif open_f_string is None and iskeyword(token.string) and not issoftkeyword(token.string):
            yield "k", token.start, token.end


def _section(name: str, title: str, parts: Iterable[str]) -> list[str]:
    found = list(parts)
    return [f'<h2 id="{name}">{title}</h2>', *found] if found else []


def _links(diff: PhaseDiff, effect: bool) -> list[tuple[str, str]]:
    wanted = [
        ("effect", "Effect", effect),
        ("overridden", "Overridden", diff.overridden),
        ("new", "New methods", diff.added),
        ("nouns", "New beside the Engine", diff.nouns),
        ("options", "New options", diff.options),
    ]
    return [(name, title) for name, title, there in wanted if there]


def _overridden(method: MethodDiff) -> str:
    assert method.old is not None
    left = f"phase {method.old.owner.phase} <small>{method.old.place}</small>"
    right = f"phase {method.new.owner.phase} <small>{method.new.place}</small>"
    return f"<h3>{method.title}</h3>{_warnings(method)}{_table(_pairs(method), left, right)}"


def _added(method: MethodDiff) -> str:
    rows = [("come", html) for html in coloured(method.text)]
    title = f"<h3>{method.title}<small>{method.new.place}</small></h3>"
    return f"{title}{_warnings(method)}{_single(rows)}"


def _file(nouns: list[Noun]) -> str:
    rows = []
    for noun in nouns:
        rows += [("come", html) for html in coloured(noun.statement.text)] + [("", "")]
    first = nouns[0].module
    return (
        f"<details><summary>{first.path.name}<small>{escape(first.doc)}</small></summary>{_single(rows[:-1])}</details>"
    )


def _warnings(method: MethodDiff) -> str:
    return "".join(f'<p class="warning">{escape(warning)}</p>' for warning in method.warnings())


def _pairs(method: MethodDiff) -> Iterator[Pair]:
    """Rows of old and new: equal lines beside each other, changed ones too as far as both go."""
    old, new = method.old_text.splitlines(), method.text.splitlines()
    left, right = coloured(method.old_text), coloured(method.text)
    for tag, i, j, k, m in difflib.SequenceMatcher(None, old, new, autojunk=False).get_opcodes():
        kinds = ("", "") if tag == "equal" else ("gone", "come")
        for step in range(max(j - i, m - k)):
            one = (kinds[0], left[i + step]) if i + step < j else ("", "")
            other = (kinds[1], right[k + step]) if k + step < m else ("", "")
            yield (*one, *other)


def _table(rows: Iterable[Pair], left: str, right: str) -> str:
    body = "".join(
        f'<tr><td class="{one}">{old or " "}</td><td class="{other}">{new or " "}</td></tr>'
        for one, old, other, new in rows
    )
    return f'<table class="code"><tr><th>{left}</th><th>{right}</th></tr>{body}</table>'


def _single(rows: Iterable[tuple[str, str]]) -> str:
    body = "".join(f'<tr><td class="{kind}">{html or " "}</td></tr>' for kind, html in rows)
    return f'<table class="code">{body}</table>'


def _plain_table(rows: Iterable[tuple[str, ...]]) -> str:
    body = "".join("<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in row) + "</tr>" for row in rows)
    return f'<table class="figures"><tr><th>option</th><th>type</th><th>default</th><th></th></tr>{body}</table>'
