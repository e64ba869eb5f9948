"""A client that leaves, at whatever stage: its request ends within two steps, its blocks are free, others go on."""

import asyncio
import json
import socket
import struct

import pytest

from minfer.core.sequence import FinishReason
from minfer.serve import answers
from tests.serve.serving import engine_of, read_all, serving, until

COMPLETIONS, CHAT = "/v1/completions", "/v1/chat/completions"
LONG = {"prompt": "a long story", "max_tokens": 900, "temperature": 0, "ignore_eos": True}


@pytest.fixture
def own(engine):
    """A server of one's own, whose steps a test allows."""
    with serving(engine) as made:
        yield made
        if engine.held:
            engine.free()
        made.all_free()


def vanish(connection):
    """Leave without a word: a reset, not an orderly end."""
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    connection.close()


def leave(connection):
    """Close in order."""
    connection.close()


def in_hand(own):
    return list(own.service.engines[0].seen.values())


def is_aborted_within_two_steps(own, sequences):
    """The loop has noticed: let the step in hand end, and one more."""
    until(lambda: own.service.admission.requests == 0)
    before = [len(sequence.output_ids) for sequence in sequences]
    own.engine.let(2)
    until(lambda: not in_hand(own))
    for sequence, count in zip(sequences, before, strict=True):
        assert sequence.finish_reason is FinishReason.ABORT
        assert len(sequence.output_ids) <= count + 2


@pytest.mark.parametrize("going", [leave, vanish])
@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("steps", [0, 1, 5])
def test_before_the_first_byte_and_in_the_middle(own, engine, going, stream, steps):
    engine.hold()
    connection = own.open(COMPLETIONS, **LONG, stream=stream)
    until(lambda: in_hand(own))
    if steps:
        engine.let(steps)
    (seen,) = in_hand(own)
    until(lambda: len(seen.sequence.output_ids) == steps)
    if stream and steps:
        assert connection.recv(4096).startswith(b"HTTP/1.1 200")
    going(connection)
    is_aborted_within_two_steps(own, [seen.sequence])


def test_in_the_middle_of_a_long_prompt(module, tokenizer):
    engine = engine_of(module, tokenizer, chunk_size=4)
    with serving(engine) as own:
        engine.hold()
        connection = own.open(COMPLETIONS, prompt=[5] * 400, max_tokens=5)
        until(lambda: in_hand(own))
        engine.let(3)
        (seen,) = in_hand(own)
        until(lambda: seen.sequence.num_cached >= 12)
        vanish(connection)
        is_aborted_within_two_steps(own, [seen.sequence])
        engine.free()
        own.all_free()


def test_while_waiting_in_the_queue(own, engine):
    engine.hold()
    running = [own.open(COMPLETIONS, **LONG) for _ in range(8)]
    own.step_until(lambda: len(in_hand(own)) == 8)
    waiting = own.open(COMPLETIONS, **LONG)
    own.step_until(lambda: len(engine.scheduler.waiting) == 1)
    last = max(in_hand(own), key=lambda seen: seen.sequence.id)
    leave(waiting)
    until(lambda: own.service.admission.requests == 8)
    engine.let(2)
    until(lambda: last.sequence.finished)
    assert last.sequence.output_ids == []
    assert len(in_hand(own)) == 8
    for connection in running:
        leave(connection)


def test_all_samples_and_prompts_of_a_request_end(own, engine):
    engine.hold()
    connection = own.open(
        CHAT, messages=[{"role": "user", "content": "x"}], n=3, max_tokens=400, stream=True, ignore_eos=True
    )
    until(lambda: len(in_hand(own)) == 3)
    sequences = [seen.sequence for seen in in_hand(own)]
    engine.let(4)
    until(lambda: all(sequence.output_ids for sequence in sequences))
    leave(connection)
    is_aborted_within_two_steps(own, sequences)


def test_while_its_prompt_becomes_tokens(own, engine):
    """The engine never sees it, or takes it back after the step in hand."""
    seen = []
    make = engine.sequences

    def slowly(prompts, params=None):
        made = make(prompts, params)
        seen.extend(made)
        until(lambda: gone)
        return made

    gone = []
    engine.sequences = slowly
    engine.hold()
    connection = own.open(COMPLETIONS, **LONG)
    until(lambda: seen)
    vanish(connection)
    gone.append(True)
    until(lambda: own.service.admission.requests == 0)
    engine.let(2)
    until(lambda: not in_hand(own))
    assert len(seen[0].output_ids) <= 1


def test_in_the_middle_of_its_body(own):
    with own.send_raw(
        b"POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\ncontent-length: 50\r\n\r\n{"
    ):
        pass
    assert own.ask("GET", "/health")[0] == 200
    assert own.service.admission.requests == 0


def test_neighbours_of_one_who_leaves_go_on(own, engine):
    want = own.complete("neighbour", max_tokens=30, ignore_eos=True)["text"]
    engine.hold()
    leaver = own.open(COMPLETIONS, **LONG, stream=True)
    until(lambda: len(in_hand(own)) == 1)
    stayer = own.open(COMPLETIONS, prompt="neighbour", max_tokens=30, temperature=0, ignore_eos=True)
    own.step_until(lambda: len(in_hand(own)) == 2)
    vanish(leaver)
    until(lambda: own.service.admission.requests == 1)
    engine.free()
    assert want.encode() in read_all(stayer)


def test_one_who_reads_nothing_costs_only_its_own_time(module, tokenizer, monkeypatch):
    """Its answer is more than the sockets' buffers take, and waits; neighbours are served; in the end it is cut off."""
    monkeypatch.setattr(answers, "GRACE", 0.5)
    engine = engine_of(module, tokenizer, num_blocks=2500, max_batch=9)
    asked = {"prompt": ["lazy"] * 8, "max_tokens": 900, "stream": True, "logprobs": 20, "ignore_eos": True}
    with serving(engine, request_seconds=8.0) as own:  # a neighbour's three tokens too
        lazy = own.open(COMPLETIONS, receive_buffer=4096, **asked)
        until(lambda: in_hand(own))
        assert own.complete("abc", max_tokens=3)
        own.all_free()
        raw = read_all(lazy)
        assert raw.startswith(b"HTTP/1.1 200")
        assert b"[DONE]" not in raw or b"took longer than 8 s" in raw  # on a slow machine the buffers may take its end


def test_an_abort_storm(module, tokenizer):
    """200 clients, of which half leave at moments of their own: the others get what they get alone."""
    with serving(engine_of(module, tokenizer, num_blocks=2000, max_batch=32)) as own:
        prompts = [f"storm {chr(97 + n % 26)}{chr(97 + n // 26)}" for n in range(100)]
        want = [own.complete(prompt, max_tokens=12, ignore_eos=True)["text"] for prompt in prompts]

        async def stay(prompt):
            reader, writer = await begin(prompt, 12)
            raw = await reader.read()
            writer.close()
            return raw.decode()

        async def go(number):
            reader, writer = await begin(prompts[number], 800)
            if number % 3 == 0:
                await reader.readline()
            await asyncio.sleep(0.002 * (number * 37 % 100))
            writer.transport.abort() if number % 2 else writer.close()
            return ""

        async def begin(prompt, tokens):
            asked = {"model": "letters", "prompt": prompt, "max_tokens": tokens, "temperature": 0, "ignore_eos": True}
            data = json.dumps({**asked, "stream": True}).encode()
            reader, writer = await asyncio.open_connection("127.0.0.1", own.port)
            writer.write(b"POST /v1/completions HTTP/1.1\r\nhost: x\r\nconnection: close\r\n")
            writer.write(b"content-type: application/json\r\ncontent-length: %d\r\n\r\n" % len(data) + data)
            return reader, writer

        async def storm():
            return await asyncio.gather(*(work for n in range(100) for work in (stay(prompts[n]), go(n))))

        texts = [said_in(raw) for raw in asyncio.run(asyncio.wait_for(storm(), 60))[::2]]
        assert texts == want
        assert all(texts)
        own.all_free()


def said_in(raw):
    """The text of a raw stream."""
    lines = [line.removeprefix("data: ") for line in raw.splitlines() if line.startswith("data: {")]
    return "".join(json.loads(line)["choices"][0]["text"] for line in lines)
