"""What two phases made of the same requests, as HTML above the difference of their code."""

from html import escape

from minfer.course.lectures.compare import Effect, shown

WIDEST = 24.0  # of a bar, in em


def effect_html(before: Effect, after: Effect, about: str) -> str:
    """A table with a bar for each figure, to the scale of the larger of the two."""
    rows = []
    for name, old in before.figures().items():
        new = after.figures()[name]
        most = max(old, new, 1e-9)
        cells = "".join(f"<td>{shown(value)}</td><td>{_bar(value / most)}</td>" for value in (old, new))
        rows.append(f"<tr><td>{escape(name)}</td>{cells}</tr>")
    head = f'<tr><th></th><th colspan="2">phase {before.phase}</th><th colspan="2">phase {after.phase}</th></tr>'
    return (
        f'<h2 id="effect">Effect</h2><p>{escape(about)}</p><table class="figures effect">{head}{"".join(rows)}</table>'
    )


def _bar(share: float) -> str:
    return f'<span class="bar" style="width:{WIDEST * share / 2:.2f}em"></span>'
