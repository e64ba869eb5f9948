"""The lessons' figures are what their script draws now."""

import re

import matplotlib
import pytest

from scripts.lesson_figures.every import FIGURES, draw
from scripts.lesson_figures.style import FOLDER
from tests.course.blocks import lessons

MAKER = re.compile(r"Matplotlib v([\d.]+)")


def said(svg):
    """What a figure says: its titles, labels and numbers, which matplotlib notes beside their outlines."""
    return re.findall(r"<!-- (.*?) -->", svg)


@pytest.mark.parametrize("name", FIGURES)
def test_a_figure_is_as_it_would_be_drawn_now(name, tmp_path):
    kept = (FOLDER / f"{name}.svg").read_text(encoding="utf-8")
    made = draw(name, tmp_path).read_text(encoding="utf-8")
    assert said(made) == said(kept), "run python -m scripts.lesson_figures"
    if MAKER.findall(kept) == [matplotlib.__version__]:
        assert made == kept, "run python -m scripts.lesson_figures"


def test_every_figure_is_on_a_page_and_every_page_shows_figures_that_are_made():
    shown = set()
    for page in lessons():
        shown |= set(re.findall(r"figures/(\w+)\.svg", page.read_text(encoding="utf-8")))
    assert shown == set(FIGURES) == {path.stem for path in FOLDER.glob("*.svg")}


@pytest.mark.parametrize("name", FIGURES)
def test_a_figure_has_a_title_that_says_something(name):
    titles = [text for text in said((FOLDER / f"{name}.svg").read_text(encoding="utf-8")) if len(text.split()) >= 5]
    assert titles, "no text of five words or more"
