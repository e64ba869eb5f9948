"""Every mistake has a code, a test, a planted engine and a page."""

import re
from pathlib import Path

import pytest

from minfer.core.errors import MinferError
from minfer.course.lessons import mistakes
from minfer.course.marks.worth import code_and_title

TESTS = Path(__file__).parents[1]
REFUSED = {"P0-01", "P0-02", "P0-03", "P0-05"}
"""Found before any test: tests/meta/test_loading.py and test_canary.py hold their bad files."""
DEFINED = re.compile(r"def (test_P\d+_\d+_\w+)\(")


def codes_looked_for():
    files = [*TESTS.glob("phase*/test_*.py"), *TESTS.glob("contract/*.py")]
    names = [name for file in files for name in DEFINED.findall(file.read_text())]
    return {code_and_title(name)[0] for name in names}


def test_every_tested_code_has_a_page():
    assert sorted(codes_looked_for() - set(mistakes.pages())) == []


def test_every_page_is_of_a_mistake_that_is_looked_for():
    built = {code.split("-")[0] for code in codes_looked_for()} | {"P0"}
    of_built = {code for code in mistakes.pages() if code.split("-")[0] in built}
    assert sorted(of_built - codes_looked_for() - REFUSED) == []


@pytest.mark.parametrize("code", sorted(mistakes.pages()))
def test_a_page_says_how_it_shows_why_and_where_to_look(code):
    page = mistakes.page(code)
    starts = [line.split("**")[1] for line in page.body.splitlines()]
    assert starts == ["Shows as", "Because", "Look at"]
    assert len(page.title) < 60


def test_a_code_is_found_however_it_is_written():
    assert mistakes.page("p3_02") is mistakes.page("P3-02")
    with pytest.raises(MinferError, match=r"there is no page P3-99: P3-09"):
        mistakes.page("P3-99")
    assert mistakes.of_phase("p10")[0].code == "P10-01"
    with pytest.raises(MinferError, match="there are no pages of phase 77"):
        mistakes.of_phase("P77")
