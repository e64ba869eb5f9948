"""The simulated card's streams: what is late, what is spoilt, who is named, and what counts as waiting."""

import pytest
import torch

from minfer.course.machines.simulated import SimulatedDevice

LOST = torch.iinfo(torch.int64).max


@pytest.fixture
def device():
    return SimulatedDevice()


def numbers(device, count=3):
    """What the model's stream makes."""
    return torch.arange(count) * torch.tensor(2)


def sent(device, made, page, waits=True):
    """A stream that copies `made` to `page`, after waiting for it or not; the copy's moment."""
    side = device.stream()
    if waits:
        side.follow(device.current_stream().moment())
    with side:
        page.copy_(made, non_blocking=True)
    return side.moment()


def test_a_copy_is_done_when_somebody_waits_for_it_and_not_before(device):
    page = device.pinned((3,), torch.int64)
    with device.watching():
        made = numbers(device)
        moment = sent(device, made, page)
        assert not device.ordering.races
    assert page.tolist() == [LOST] * 3
    with device.watching():
        moment.wait()
        assert page.tolist() == [0, 2, 4]
    assert device.ordering.races == []


def test_pinned_memory_holds_nothing_at_first(device):
    assert device.pinned((2,), torch.float32).isnan().all()
    assert device.pinned((2, 2), torch.int64).flatten().tolist() == [LOST] * 4


def test_a_copy_that_does_not_wait_for_its_source_is_poison_and_both_are_named(device):
    page = device.pinned((3,), torch.int64)
    with device.watching():
        made = numbers(device)
        sent(device, made, page, waits=False).wait()
        assert page.tolist() == [LOST] * 3
    (said,) = device.ordering.races
    assert said.startswith("aten.copy_.default on stream 1 reads a torch.int64 tensor of shape (3,) that is written")
    assert said.endswith("by aten.mul.Tensor on the model's stream: nothing has waited for that")


def test_a_host_that_reads_too_early_reads_poison(device):
    page = device.pinned((3,), torch.int64)
    with device.watching():
        made = numbers(device)
        sent(device, made, page)
        assert page.tolist() == [LOST] * 3
    (said,) = device.ordering.races
    assert said.startswith("tolist on the host reads a torch.int64 tensor of shape (3,) that is written by aten.copy_")


def test_a_page_that_is_copied_to_again_before_it_is_read_is_a_race(device):
    page = device.pinned((3,), torch.int64)
    side = device.stream()
    with device.watching():
        moments, kept = [], []
        for _ in range(2):
            kept.append(numbers(device))
            side.follow(device.current_stream().moment())
            with side:
                page.copy_(kept[-1], non_blocking=True)
            moments.append(side.moment())
        moments[0].wait()
        assert page.tolist() == [LOST] * 3
    assert len(device.ordering.races) == 1


def test_what_is_still_read_is_not_overwritten_unpunished(device):
    """A buffer that the model's stream computes with takes the next weights only after that."""
    host, buffer = device.pinned((3,), torch.float32), torch.ones(3)
    with device.watching():
        host.fill_(5.0)
        used = buffer * 2
        moment = sent(device, host, buffer, waits=False)
        device.current_stream().follow(moment)
        again = buffer * 2
    assert used.tolist() == [2, 2, 2]
    assert again.isnan().all()
    (said,) = device.ordering.races
    assert "writes a torch.float32 tensor of shape (3,) that is still read by aten.mul.Tensor on the model's" in said


def test_what_a_copy_still_reads_is_not_overwritten_unpunished(device):
    page = device.pinned((3,), torch.int64)
    with device.watching():
        made = numbers(device)
        sent(device, made, page)
        made.add_(1)
    (said,) = device.ordering.races
    assert said.startswith("aten.add_.Tensor on the model's stream writes")
    assert "that is still read by aten.copy_.default on stream 1" in said


def test_weights_that_were_waited_for_are_there(device):
    host, buffer = device.pinned((3,), torch.float32), torch.ones(3)
    with device.watching():
        host.fill_(5.0)
        device.current_stream().follow(sent(device, host, buffer))
        got = buffer * 2
    assert got.tolist() == [10, 10, 10]
    assert device.ordering.races == []


def test_memory_that_is_freed_before_its_copy_is_done_is_somebody_elses(device):
    page = device.pinned((3,), torch.int64)
    with device.watching():
        moment = sent(device, numbers(device), page)  # nobody keeps the numbers
        moment.wait()
        assert page.tolist() == [LOST] * 3


def test_a_moment_that_was_asked_for_before_the_copy_says_nothing_of_it(device):
    page, side = device.pinned((3,), torch.int64), device.stream()
    with device.watching():
        early = side.moment()
        made = numbers(device)
        side.follow(device.current_stream().moment())
        with side:
            page.copy_(made, non_blocking=True)
        early.wait()
        assert page.tolist() == [LOST] * 3


def test_a_copy_that_blocks_makes_the_host_wait(device):
    page, side = device.pinned((3,), torch.int64), device.stream()
    with device.watching():
        made = numbers(device)
        side.follow(device.current_stream().moment())
        with side:
            page.copy_(made)
        assert page.tolist() == [0, 2, 4]
    assert device.waits == 1


def test_waits_and_those_that_leave_the_card_idle_are_counted(device):
    page = device.pinned((3,), torch.int64)
    with device.watching():
        made = numbers(device)
        moment = sent(device, made, page)
        more = made + 1  # queued behind it
        moment.wait()
        assert (device.waits, device.stalls) == (1, 0)
        more.tolist()  # in the card's memory: a wait for all of its stream
        assert (device.waits, device.stalls) == (2, 1)
        device.synchronize()
    assert device.synchronizations == 1


def test_views_and_new_memory_are_no_work(device):
    with device.watching():
        made = numbers(device)
        moment = device.current_stream().moment()
        torch.empty(3)
        made.view(3, 1).t()
        moment.wait()
    assert (device.waits, device.stalls) == (1, 1)


def test_unwatched_it_is_a_cpu(device):
    page = device.pinned((3,), torch.int64)
    sent(device, torch.arange(3), page, waits=False)
    assert page.tolist() == [0, 1, 2]
