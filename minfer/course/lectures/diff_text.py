"""A diff for the terminal, with colours, and as Markdown."""

from collections import Counter
from collections.abc import Iterable, Iterator

from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from minfer.course.lectures.diff import Line, MethodDiff, Noun, PhaseDiff, hidden

STYLES = {" ": "", "-": "red", "+": "green"}


def terminal(diff: PhaseDiff, full: bool = False, hide_added: bool = False) -> Iterator[RenderableType]:
    """The diff, from top to bottom; `full`: what is new as a whole, not only what it is called and says of itself."""
    yield Text(f"{diff.title}: {counts(diff)}", "bold")
    for method in diff.overridden:
        yield from _method(method, method.lines(), hide_added)
    for method in diff.added if full else []:
        yield from _method(method, [Line("+", text) for text in method.text.splitlines()], hide_added)
    if not full:
        yield from _heads(diff.added, hide_added)
    for path in dict.fromkeys(noun.module.path for noun in diff.nouns):
        yield from _file([noun for noun in diff.nouns if noun.module.path == path], full, hide_added)
    if diff.options:
        yield Text("\nNew options", "bold")
        for option in diff.options:
            yield Text(f"  {option.name}: {option.type} = {option.default}  {option.about}")


def stat(diff: PhaseDiff) -> Table:
    """A line for each method and noun: how many lines went and came."""
    table = Table("what", "from", "−", "+", title=f"{diff.title}: {counts(diff)}", title_justify="left", box=None)
    for method in diff.methods:
        old = f"phase {method.old.owner.phase}" if method.old else "new"
        table.add_row(method.title, old, str(method.count("-") or ""), str(method.count("+")))
    for noun in diff.nouns:
        table.add_row(noun.name, noun.module.path.name, "", str(len(noun.statement.text.splitlines())))
    return table


def markdown(diff: PhaseDiff, hide_added: bool = False) -> str:
    """The whole diff; code beside the Engine is folded away."""
    parts = [f"# {diff.title}", f"{counts(diff)}."]
    if diff.overridden:
        parts.append("## Overridden")
        parts += [_markdown_method(method, method.lines(), hide_added) for method in diff.overridden]
    if diff.added:
        parts.append("## New methods")
        for method in diff.added:
            parts.append(_markdown_method(method, [Line("+", text) for text in method.text.splitlines()], hide_added))
    if diff.nouns:
        parts.append("## New beside the Engine")
        for path in dict.fromkeys(noun.module.path for noun in diff.nouns):
            own = [noun for noun in diff.nouns if noun.module.path == path]
            parts.append(_markdown_module(own, hide_added))
    if diff.options:
        rows = [f"| `{one.name}` | `{one.type}` | `{one.default}` | {one.about} |" for one in diff.options]
        parts.append("\n".join(["## New options\n", "| option | type | default | |", "|---|---|---|---|", *rows]))
    return "\n\n".join(parts) + "\n"


def _method(method: MethodDiff, lines: Iterable[Line], hide_added: bool) -> Iterator[Text]:
    mark, style = ("~", "bold yellow") if method.old else ("+", "bold green")
    was = f" (was {method.old.place})" if method.old else ""
    yield Text.assemble("\n", (f"{mark} {method.title}", style), f"  {method.new.place}{was}")
    yield from (Text(f"! {warning}", "yellow") for warning in method.warnings())
    yield from (_line(line, hide_added) for line in lines)


def _heads(added: list[MethodDiff], hide_added: bool) -> Iterator[Text]:
    """New methods by what they are called and say of themselves; private ones by their names."""
    public = [method for method in added if not method.name.startswith("_")]
    private = [method.name for method in added if method.name.startswith("_")]
    if added:
        yield Text("\n+ new methods", "bold green")
    for method in public:
        yield from (_line(Line("+", text), hide_added) for text in method.signature)
        yield from (Text(f"! {warning}", "yellow") for warning in method.warnings())
    if private:
        yield _line(Line("+", f"and {', '.join(private)}"), hide_added)


def _file(nouns: list[Noun], full: bool, hide_added: bool) -> Iterator[Text]:
    """What one file has beside the Engine."""
    names = ", ".join(noun.statement.names[0] for noun in _public(nouns))
    size = sum(len(noun.statement.text.splitlines()) for noun in nouns)
    module = nouns[0].module
    yield Text.assemble("\n" if full else "", (f"+ {module.path.name}", "bold green"), f", {size} lines: {names}")
    for noun in nouns if full else []:
        yield from (_line(Line("+", text), hide_added) for text in [*noun.statement.text.splitlines(), ""])


def _line(line: Line, hide_added: bool) -> Text:
    return Text(f"{line.kind} {_shown(line, hide_added)}".rstrip(), STYLES[line.kind])


def _shown(line: Line, hide_added: bool) -> str:
    return hidden(line.text) if hide_added and line.kind == "+" else line.text


def _markdown_method(method: MethodDiff, lines: Iterable[Line], hide_added: bool) -> str:
    was = f", was `{method.old.place}`" if method.old else ""
    parts = [f"### `{method.title}`", f"`{method.new.place}`{was}"]
    parts += [f"> {warning}" for warning in method.warnings()]
    return "\n\n".join([*parts, _fenced(lines, hide_added)])


def _markdown_module(nouns: list[Noun], hide_added: bool) -> str:
    lines = [Line("+", text) for noun in nouns for text in [*noun.statement.text.splitlines(), ""]]
    names = ", ".join(f"<code>{noun.name}</code>" for noun in _public(nouns)) or "functions of its own"
    summary = f"<summary>{nouns[0].module.path.name}: {names}</summary>"
    return f"<details>{summary}\n\n{_fenced(lines[:-1], hide_added)}\n\n</details>"


def _fenced(lines: Iterable[Line], hide_added: bool) -> str:
    return "\n".join(["```diff", *(f"{one.kind} {_shown(one, hide_added)}".rstrip() for one in lines), "```"])


def _public(nouns: list[Noun]) -> list[Noun]:
    return [noun for noun in nouns if not noun.statement.names[0].startswith("_")]


def counts(diff: PhaseDiff) -> str:
    """How much there is of each kind, in words."""
    classes = Counter(method.new.owner.node.name for method in diff.overridden)
    by_class = f" ({', '.join(f'{name} {count}' for name, count in classes.items())})" if len(classes) > 1 else ""
    counted = [
        (len(diff.overridden), f"method overridden{by_class}", f"methods overridden{by_class}"),
        (len(diff.added), "new", "new"),
        (len(_public(diff.nouns)), "new noun", "new nouns"),
        (len(diff.options), "new option", "new options"),
    ]
    return ", ".join(f"{count} {one if count == 1 else many}" for count, one, many in counted if count)
