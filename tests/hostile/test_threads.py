"""Several threads on one engine: each gets its own answer, and nobody sees half of a step."""

import sys
import threading

import pytest

from minfer.phase5 import Engine
from tests.hostile.failing import right_tokens, serving, works

pytestmark = pytest.mark.usefixtures("phases")


@pytest.fixture
def model(lab):
    return lab.model("llama")


@pytest.fixture(autouse=True)
def hasty():
    """Let threads take turns as often as they can."""
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(interval)


def at_once(*works):
    """Run functions in threads that begin together; raise what one of them raises."""
    ready, errors = threading.Barrier(len(works)), []

    def begin(work):
        try:
            ready.wait()
            work()
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=begin, args=(work,), daemon=True) for work in works]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
        assert not thread.is_alive(), "a thread hangs"
    if errors:
        raise errors[0]


def test_four_threads_submit_while_another_steps(lab, model):
    service = serving(Engine, lab, model, max_batch=5)
    prompts = [[lab.prompt(model, 1 + (3 * i + j) % 9) for j in range(5)] for i in range(4)]

    def submit(own):
        for prompt in own:
            service.submit(prompt, lab.params(4))

    def step():
        while len(service.sequences) < 20 or service.unfinished:
            service.engine.step()

    at_once(step, *(lambda own=own: submit(own) for own in prompts))
    right_tokens(model, service.sequences)
    works(service)


def test_two_threads_step(lab, model):
    service = serving(Engine, lab, model)
    for length in (9, 3, 6, 12):
        service.submit(lab.prompt(model, length), lab.params(6))

    def step():
        while service.unfinished:
            service.engine.step()

    at_once(step, step)
    right_tokens(model, service.sequences)
    works(service)


def test_threads_that_generate_and_stream_on_one_engine(lab, model):
    service = serving(Engine, lab, model, tokenizer=lab.tokenizer(), num_blocks=12)
    asked = [[lab.prompt(model, 2 + (i + j) % 7) for j in range(3)] for i in range(4)]
    params = lab.params(6)
    got = {}

    def generate(i):
        got[i] = [completion.text for completion in service.engine.generate(asked[i], params)]

    def stream(i):
        got[i] = ["".join(service.engine.stream(prompt, params)) for prompt in asked[i]]

    at_once(lambda: generate(0), lambda: stream(1), lambda: generate(2), lambda: stream(3))
    for i, prompts in enumerate(asked):
        want = ["".join(f" {token}" for token in model.oracle.greedy(prompt, 6)[0]) for prompt in prompts]
        assert got[i] == want
    works(service)


def test_aborts_from_another_thread(lab, model):
    service = serving(Engine, lab, model, chunk_size=4)
    kept = [service.submit(lab.prompt(model, length), lab.params(7)) for length in (9, 4)]
    gone = [service.submit(lab.prompt(model, length), lab.params(7)) for length in (12, 3, 8)]

    def step():
        while service.unfinished:
            service.engine.step()

    at_once(step, lambda: [service.engine.abort(sequence.id) for sequence in gone])
    right_tokens(model, kept)
    for sequence in gone:
        assert sequence.finished
    works(service)


def test_the_state_can_be_read_while_another_thread_steps(lab, model):
    service = serving(Engine, lab, model, max_batch=8, num_blocks=40)
    for number in range(40):
        service.submit([4 + number % 90], lab.params(2 + number % 4))
    seen, looked = [], threading.Event()

    def step():
        service.engine.step()
        looked.wait(30)  # else all may be done before anybody has looked
        while service.unfinished:
            service.engine.step()

    def look():
        while service.unfinished:
            state, usage = service.engine.debug_state(), service.engine.kv_usage()
            held = sorted(block for table in state["tables"].values() for block in table)
            assert held == [block for block, count in enumerate(state["references"]) for _ in range(count)]
            assert usage.held <= usage.allocated
            seen.append(len(held))
            if held:
                looked.set()

    at_once(step, look, look)
    assert any(seen)
    right_tokens(model, service.sequences[:5])
    works(service)
