"""The notebooks as they lie in the repository, read without running them: `make notebooks` runs them."""

import ast
import base64
import re
import struct
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "notebooks"
PHASES = [f"phase{number}" for number in range(1, 12)]
NAMES = [*PHASES, "benchmark"]
LINES = 25
BYTES = 100_000
PHASE = re.compile(r"phase(\d+)")
PLACE = re.compile(r"/(?:home|root|tmp|work|Users|usr)/|[A-Z]:\\\\")
PLOTS = ("chart", "schedule", "roofline")


def read(name):
    import nbformat  # takes a second, and no other test needs it

    return nbformat.read(FOLDER / f"{name}.ipynb", as_version=4)


def code(name):
    return [cell for cell in read(name).cells if cell.cell_type == "code"]


def texts(cell):
    """What a cell shows, as text."""
    for output in cell.outputs:
        yield output.get("text", "")
        data = output.get("data", {})
        yield from (text for kind, text in data.items() if kind.startswith("text/"))


def images(cell):
    return [base64.b64decode(o.data["image/png"]) for o in cell.outputs if "image/png" in o.get("data", {})]


def imported(tree):
    """Modules that a cell imports, names from a package as modules of it."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def calls(tree, modules):
    """Calls of functions of some modules: `chart.lines(…)`, or `roofline(…)` by its own name."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Call):
            function = node.func
            owner = function.value if isinstance(function, ast.Attribute) else function
            if isinstance(owner, ast.Name) and owner.id in modules:
                yield ast.unparse(function), node


def test_there_is_one_for_each_phase_and_a_benchmark():
    assert sorted(path.stem for path in FOLDER.glob("*.ipynb")) == sorted(NAMES)


@pytest.mark.parametrize("name", PHASES)
def test_nothing_of_a_later_phase_is_imported_or_named(name):
    own = int(name.removeprefix("phase"))
    later = [
        f"cell {number}: {module}"
        for number, cell in enumerate(code(name))
        for module in imported(ast.parse(cell.source))
        if module.startswith("minfer.") and any(int(found) > own for found in PHASE.findall(module))
    ]
    assert not later
    if own < 11:  # which has all phases on one figure
        assert "import_module" not in "".join(cell.source for cell in code(name))
    assert f"from minfer.phase{own} import" in "".join(cell.source for cell in code(name))


@pytest.mark.parametrize("name", NAMES)
def test_it_asks_has_one_predict_measures_draws_explains_and_checks(name):
    notebook = read(name)
    prose = "\n".join(cell.source for cell in notebook.cells if cell.cell_type == "markdown")
    source = "\n".join(cell.source for cell in code(name))
    for part in ("**Question.**", "**Explanation.**", "## Exercise", "**Exit question.**"):
        assert part in prose, f"no {part}"
    assert re.search(r"^\s*MY_\w+ = ", source, re.M), "nothing to predict"
    assert re.search(r"^\s*MODEL = ", source, re.M), "no variable for another model"
    assert re.search(r"^check\(\w+, phase=\d+\)$", source, re.M), "no exercise that is checked"
    assert any(images(cell) for cell in code(name)), "no figure"


@pytest.mark.parametrize("name", NAMES)
def test_cells_are_short(name):
    assert {len(cell.source.splitlines()) for cell in code(name)} <= set(range(1, LINES + 1))


@pytest.mark.parametrize("name", NAMES)
def test_every_cell_has_run_in_order_and_without_an_error(name):
    cells = code(name)
    assert [cell.execution_count for cell in cells] == list(range(1, len(cells) + 1)), (
        "python -m scripts.notebooks --write"
    )
    assert not [output for cell in cells for output in cell.outputs if output.output_type == "error"]


@pytest.mark.parametrize("name", NAMES)
def test_outputs_name_no_place_of_a_machine_and_hold_nothing_volatile(name):
    notebook = read(name)
    for cell in code(name):
        for text in texts(cell):
            assert not PLACE.search(text), text
            assert "\x1b[" not in text, "colours of a terminal"
            assert not re.search(r" at 0x[0-9a-f]+>", text), "an address in memory"
        assert not [output for output in cell.outputs if output.get("name") == "stderr"]
        assert not cell.metadata
    assert set(notebook.metadata) == {"kernelspec", "language_info"}


@pytest.mark.parametrize("name", NAMES)
def test_figures_are_small_and_read_in_grey(name):
    for cell in code(name):
        for png in images(cell):
            width, height = struct.unpack(">II", png[16:24])
            assert len(png) <= BYTES
            assert width <= 1000
            assert height <= 700
        for colour in ("tab:", "'red'", "'green'", "cmap=", "viridis"):
            assert colour not in cell.source, "colours come from minfer.plots, whose shades differ in grey"


@pytest.mark.parametrize("name", NAMES)
def test_every_figure_has_a_title_of_its_data_and_named_axes_with_units(name):
    for cell in code(name):
        tree = ast.parse(cell.source)
        drawn = list(calls(tree, PLOTS))
        figures = [node for called, node in drawn if called == "chart.panels"] + re.findall(
            r"pyplot\.subplots", cell.source
        )
        charts = [(called, node) for called, node in drawn if called not in ("chart.panels", "chart.logarithmic")]
        assert len(charts) >= len(figures), f"axes without a chart: {cell.source[:60]}"
        for called, node in charts:
            if called in ("chart.name", "chart.logarithmic", "schedule.busy"):
                continue
            assert len(node.args) >= (3 if called.split(".")[0] in ("schedule",) else 5), f"{called} has no title"
            assert not any(isinstance(one, ast.Constant) and one.value == "" for one in node.args)
