"""BlockAllocator where it is used wrongly, and digests that collide."""

import hashlib

import pytest

from minfer.phase5 import BlockAllocator, Engine, scheduler
from minfer.phase5.block_allocator import Content, chain
from tests.hostile.failing import serving


def test_a_double_free_raises_and_changes_nothing():
    allocator = BlockAllocator(3)
    one, other = allocator.allocate(), allocator.allocate()
    allocator.release(one)
    with pytest.raises(RuntimeError, match=f"block {one} is freed twice"):
        allocator.release(one)
    assert (allocator.num_free, allocator.references[one], allocator.references[other]) == (2, 0, 1)
    assert len({allocator.allocate(), allocator.allocate(), other}) == 3


def test_an_empty_pool_has_nothing_to_give():
    allocator = BlockAllocator(1)
    allocator.allocate()
    with pytest.raises(KeyError):
        allocator.allocate()
    assert allocator.num_free == 0


def test_the_block_that_is_free_for_the_longest_goes_first():
    allocator = BlockAllocator(3)
    blocks = [allocator.allocate() for _ in range(3)]
    for block in (blocks[1], blocks[2], blocks[0]):
        allocator.release(block)
    assert [allocator.allocate() for _ in range(3)] == [blocks[1], blocks[2], blocks[0]]


def test_a_free_block_is_shared_until_it_is_given_to_another():
    allocator = BlockAllocator(2)
    block, content = allocator.allocate(), chain(b"", [1, 2])
    allocator.publish(block, content)
    allocator.release(block)
    assert allocator.cached == [block]
    assert allocator.share(content) == block
    assert allocator.share(content) == block
    assert allocator.references[block] == 2
    allocator.release(block)
    allocator.release(block)
    assert {allocator.allocate(), allocator.allocate()} == {0, 1}
    assert allocator.share(content) is None
    assert allocator.cached == []


def test_the_first_to_publish_a_content_keeps_it():
    allocator = BlockAllocator(3)
    first, second = allocator.allocate(), allocator.allocate()
    content = chain(b"", [1, 2])
    allocator.publish(first, content)
    allocator.publish(second, content)
    allocator.forget(second)
    assert allocator.share(content) == first


def test_a_digest_covers_order_length_and_all_that_precedes():
    digests = {
        chain(parent, tokens).digest
        for parent in (b"", chain(b"", [1]).digest, chain(b"", [2]).digest)
        for tokens in ([1, 2], [2, 1], [1, 2, 0], [12], [-1, 2], [2**40, 2])
    }
    assert len(digests) == 18
    assert {len(digest) for digest in digests} == {32}


def test_equal_digests_of_other_tokens_are_no_hit():
    allocator = BlockAllocator(2)
    allocator.publish(allocator.allocate(), Content(b"same", (1, 2)))
    assert allocator.share(Content(b"same", (2, 1))) is None
    assert allocator.share(Content(b"same", (1, 2))) == 0


def collide(parent, tokens):
    """Digests that tell how many blocks there are, and no more."""
    return Content(hashlib.sha256(parent).digest(), tuple(tokens))


def test_colliding_digests_cost_sharing_and_nothing_else(lab, monkeypatch):
    monkeypatch.setattr(scheduler, "chain", collide)
    model = lab.model()
    service = serving(Engine, lab, model)
    start, other = lab.prompt(model, 9), lab.prompt(model, 9)
    service.serve([[*start, 7], [*other, 7], [*start, 8], other[:5] + start], lab.params(4))
    service.sequences.clear()
    service.serve([[*start, 9]], lab.params(3))
    assert service.state["shared_tokens"] > 0
