"""The live page in a real browser: it draws what runs, in both themes, with nothing from outside."""

import base64
import json
import re
import shutil
import subprocess
import threading
import urllib.request
from importlib.resources import files

import pytest

from tests.serve.serving import engine_of, serving, until

DRIVER = shutil.which("chromedriver")
PAGE = files("minfer.serve").joinpath("page.html").read_text(encoding="utf-8")
STORY = {"prompt": "a story of letters", "max_tokens": 200, "temperature": 0, "ignore_eos": True}


def test_the_page_asks_nobody_else():
    assert not re.findall(r"""(?:src|href)\s*=|https?:|//[a-z]+\.|@import|url\(""", PAGE)


class Browser:
    """A headless Chromium, through the WebDriver protocol."""

    def __init__(self, port):
        self.port = port
        options = {"args": ["--headless=new", "--no-sandbox", "--disable-gpu", "--window-size=1600,1400"]}
        wanted = {"capabilities": {"alwaysMatch": {"goog:chromeOptions": options}}}
        self.session = f"/session/{self.call('POST', '/session', wanted)['sessionId']}"

    def call(self, method, path, body=None):
        data = None if body is None else json.dumps(body).encode()
        asked = urllib.request.Request(f"http://127.0.0.1:{self.port}{path}", data, method=method)
        with urllib.request.urlopen(asked, timeout=60) as answer:
            return json.load(answer)["value"]

    def open(self, url):
        self.call("POST", f"{self.session}/url", {"url": url})

    def run(self, script):
        return self.call("POST", f"{self.session}/execute/sync", {"script": script, "args": []})

    def screenshot(self, path):
        path.write_bytes(base64.b64decode(self.call("GET", f"{self.session}/screenshot")))


@pytest.fixture(scope="module")
def browser():
    if DRIVER is None:
        pytest.skip("no browser: apt-get install chromium chromium-driver")
    driver = subprocess.Popen([DRIVER, "--port=0"], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    line = next(line for line in driver.stdout if "successfully on port" in line)
    made = Browser(int(re.search(r"on port (\d+)", line)[1]))
    yield made
    made.call("DELETE", made.session)
    driver.terminate()
    driver.wait(10)


@pytest.fixture(scope="module")
def busy(module, tokenizer):
    """A server with seven requests that run and three that wait, some of which begin alike."""
    engine = engine_of(module, tokenizer, num_blocks=300, max_batch=6)
    with serving(engine, api_key="secret") as own:
        key = {"authorization": "Bearer secret"}
        for length in (30, 60, 90):
            own.ask("POST", "/v1/completions", {"model": "letters", **STORY, "max_tokens": length}, key)
        many = {
            "model": "letters",
            **STORY,
            "prompt": [f"{STORY['prompt']} {n}" for n in "abcdefghi"],
            "max_tokens": 900,
        }
        threading.Thread(target=lambda: own.ask("POST", "/v1/completions", many, key), daemon=True).start()
        until(lambda: len(own.service.engines[0].seen) == 9)
        engine.hold()
        yield own
        own.service.draining = True


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_it_draws_what_runs(browser, busy, theme, tmp_path_factory):
    busy.engine.let(40)
    browser.open(f"{busy.url}/?theme={theme}#key=secret")
    busy.engine.let(1)
    until(lambda: browser.run("return +document.documentElement.dataset.drawn || 0") >= 1)
    text = browser.run("return document.body.innerText")
    assert "letters · phase 5" in text
    assert "6 / 6" in text
    assert "6 running, 3 waiting" in text
    for said in (
        "Tokens per second",
        "TTFT, median",
        "Batch rows over the last steps",
        "of 300 used",
        "Memory",
        "weights",
    ):
        assert said in text
    assert browser.run("return document.querySelectorAll('canvas').length") == 3
    colors = browser.run(COLORS)
    assert min(colors) > 5, f"canvases with so many colours: {colors}"
    row, empty = browser.run(LAST_CELL)
    assert row[4:7] == empty[:3], "the last blocks of the pool are free, and so drawn in the colour of what is empty"
    background = browser.run("return getComputedStyle(document.documentElement).backgroundColor")
    assert (sum(map(int, re.findall(r"\d+", background)[:3])) > 600) == (theme == "light")
    browser.screenshot(tmp_path_factory.mktemp("page") / f"{theme}.png")


LAST_CELL = """
const canvas = document.querySelectorAll('canvas')[1];
const row = [...canvas.getContext('2d').getImageData(0, canvas.height - 3, 3, 1).data];
return [row, color('--empty').match(/[0-9]+/g).map(Number)];
"""
"""A few pixels of the block map's last row of cells."""

COLORS = """
return [...document.querySelectorAll('canvas')].slice(0, 2).map(canvas => {
  const data = canvas.getContext('2d').getImageData(0, 0, canvas.width, canvas.height).data, seen = new Set();
  for (let at = 0; at < data.length; at += 4) seen.add(data[at] << 16 | data[at + 1] << 8 | data[at + 2]);
  return seen.size;
});
"""

CONTRAST = """
const light = rgb => rgb.map(v => (v /= 255) <= .03928 ? v / 12.92 : ((v + .055) / 1.055) ** 2.4)
  .reduce((sum, v, n) => sum + v * [.2126, .7152, .0722][n], 0);
const parse = text => text.match(/[\\d.]+/g).slice(0, 3).map(Number);
return [...document.querySelectorAll('.tile b, .tile span, h2, h2 small, td, th, header *')].map(one => {
  let under = one;
  while (getComputedStyle(under).backgroundColor === 'rgba(0, 0, 0, 0)')
    under = under.parentElement || document.documentElement;
  const [a, b] = [one, under].map((e, n) => light(parse(getComputedStyle(e)[n ? 'backgroundColor' : 'color'])));
  const contrast = (Math.max(a, b) + .05) / (Math.min(a, b) + .05);
  return [one.textContent.slice(0, 30), contrast, parseFloat(getComputedStyle(one).fontSize)];
});
"""


def test_two_engines_stand_side_by_side(browser, module, tokenizer):
    engines = [engine_of(module, tokenizer) for _ in range(2)]
    with serving([lambda: engines[0], lambda: engines[1]]) as own:
        for length in (5, 7):
            own.complete(max_tokens=length, ignore_eos=True)
        browser.open(f"{own.url}/?theme=light")
        until(lambda: browser.run("return +document.documentElement.dataset.drawn || 0") >= 1)
        boxes = browser.run("return [...document.querySelectorAll('.engine')].map(one => one.getBoundingClientRect())")
        heads = browser.run("return [...document.querySelectorAll('.engine > h2')].map(one => one.textContent)")
        drawn = browser.run("return [...document.querySelectorAll('canvas')].map(c => [c.width, c.clientWidth])")
        width = browser.run("return [document.documentElement.scrollWidth, innerWidth]")
    assert heads == ["Replica 0: ready, small steps", "Replica 1: ready, small steps"]
    assert boxes[0]["top"] == boxes[1]["top"]
    assert boxes[0]["right"] <= boxes[1]["left"]
    assert len(drawn) == 2 * 2 + 1
    assert all(pixels == shown for pixels, shown in drawn), f"drawn for another width: {drawn}"
    assert width[0] <= width[1], "it has to be scrolled sideways"


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_it_can_be_read_from_the_last_row(browser, busy, theme):
    """Every text has a contrast of 4.5 at least (WCAG AA), and is not small at the width of a projector."""
    busy.engine.let(1)
    browser.open(f"{busy.url}/?theme={theme}#key=secret")
    until(lambda: browser.run("return +document.documentElement.dataset.drawn || 0") >= 1)
    for text, contrast, size in browser.run(CONTRAST):
        assert contrast >= 4.5, f"{text!r}: contrast {contrast:.1f}"
        assert size >= 14, f"{text!r}: {size} px"


def test_without_the_key_it_says_what_to_do(browser, busy):
    browser.open(f"{busy.url}/?theme=light")
    until(lambda: "add #key=" in browser.run("return document.body.innerText"))
