"""Device: names, dtypes and memory figures; a CUDA card is simulated, since the rules are minfer's own."""

import pytest
import torch
from torch import nn

from minfer.core.device import CPU, CUDA, Device
from minfer.core.errors import DeviceError

BF16, F16, F32, F64 = torch.bfloat16, torch.float16, torch.float32, torch.float64


@pytest.fixture
def cards(monkeypatch):
    """A machine with two cards that lack bfloat16, of 24 GB, of which 20 are free."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda including_emulation=True: including_emulation)
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (20_000, 24_000))
    monkeypatch.setattr(torch.cuda, "memory_reserved", lambda device: 3_000)
    monkeypatch.setattr(torch.cuda, "memory_allocated", lambda device: 1_000)


@pytest.fixture
def no_card(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)


def test_auto_is_the_cpu_without_a_card_and_the_first_card_with_one(no_card, monkeypatch):
    assert isinstance(Device.get("auto"), CPU)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    assert Device.get("auto").torch_device == torch.device("cuda:0")


def test_a_device_passes_through_so_that_tests_can_bring_their_own():
    mine = CPU()
    assert Device.get(mine) is mine
    assert Device.of(nn.Linear(2, 3), mine) is mine


def test_a_model_is_where_its_parameters_are_and_a_model_without_any_where_it_is_told(cards):
    assert isinstance(Device.of(nn.Linear(2, 3), "auto"), CPU)
    assert isinstance(Device.of(nn.Linear(2, 3), "cpu"), CPU)
    assert isinstance(Device.of(nn.Identity(), "cuda"), CUDA)


def test_a_model_on_another_device_than_the_option_says_is_refused(cards):
    with pytest.raises(DeviceError, match=r"^the model is on cpu, the option says cuda: move the model, or leave it"):
        Device.of(nn.Linear(2, 3), "cuda")


@pytest.mark.parametrize(("name", "index"), [("cuda", 0), ("cuda:1", 1), (torch.device("cuda", 1), 1)])
def test_a_card_is_found_by_its_name(cards, name, index):
    assert Device.get(name).torch_device == torch.device("cuda", index)


@pytest.mark.parametrize("name", ["gpu", "cuda:x", "", None, 3.5])
def test_an_unknown_name_is_refused_with_the_known_ones(no_card, name):
    with pytest.raises(DeviceError, match=r"^device .* is unknown: use auto, cpu, cuda or cuda:N"):
        Device.get(name)


@pytest.mark.parametrize("name", ["meta", "mps", "xpu"])
def test_a_device_of_torch_that_minfer_does_not_run_on_is_refused(name):
    with pytest.raises(DeviceError, match=f"^device '{name}' is not supported: use auto, cpu, cuda or cuda:N"):
        Device.get(name)


def test_a_card_that_is_not_there_is_refused_with_the_number_of_cards(cards, monkeypatch):
    with pytest.raises(DeviceError, match=r"^device 'cuda:2' is not there: torch sees 2 CUDA devices"):
        Device.get("cuda:2")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(DeviceError, match=r"^device 'cuda' is not there: torch sees 0 CUDA devices"):
        Device.get("cuda")


@pytest.mark.parametrize(
    ("stored", "native", "expected"),
    [(F64, False, F64), (F32, False, F32), (F16, False, F32), (F16, True, F32), (BF16, False, F32), (BF16, True, BF16)],
)
def test_auto_on_a_cpu_is_the_stored_dtype_but_float32_for_halves_it_cannot_compute(
    monkeypatch, stored, native, expected
):
    monkeypatch.setattr(CPU, "has_bfloat16", staticmethod(lambda: native))
    dtype, why = CPU().dtype("auto", stored)
    assert dtype == expected
    assert ("as stored" in why) == (stored == expected)


def test_a_cpu_says_by_its_flags_whether_it_computes_bfloat16(monkeypatch):
    for probe in ("_is_avx512_bf16_supported", "_is_amx_tile_supported"):
        monkeypatch.setattr(torch.cpu, probe, lambda: False, raising=False)
    assert not CPU.has_bfloat16()
    monkeypatch.setattr(torch.cpu, "_is_amx_tile_supported", lambda: True, raising=False)
    assert CPU.has_bfloat16()


def test_auto_on_a_card_is_the_stored_dtype_but_float16_for_bfloat16_on_an_old_card(cards, monkeypatch):
    card = Device.get("cuda")
    assert [card.dtype("auto", stored)[0] for stored in (F64, F32, F16, BF16)] == [F64, F32, F16, F16]
    assert card.dtype("auto", BF16)[1] == "stored as bfloat16, which this card lacks"
    monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda including_emulation=True: True)
    assert card.dtype("auto", BF16)[0] == BF16


@pytest.mark.parametrize("wanted", ["float64", "float32", "float16", "bfloat16"])
def test_a_dtype_that_is_asked_for_is_given(wanted):
    assert CPU().dtype(wanted, F32) == (getattr(torch, wanted), "as asked")


def test_an_unknown_dtype_is_refused_with_the_known_ones():
    with pytest.raises(DeviceError, match=r"^dtype 'int8' is unknown: use auto, float64, float32, float16, bfloat16"):
        CPU().dtype("int8", F32)


def test_memory_of_a_card_counts_what_torch_holds_without_using_it_as_free(cards):
    card = Device.get("cuda:1")
    assert (card.total_memory(), card.free_memory(), card.used_memory()) == (24_000, 22_000, 1_000)


def test_memory_of_the_cpu_is_in_bytes_and_grows_with_what_is_allocated():
    cpu = CPU()
    before = cpu.used_memory()
    held = torch.ones(64 * 2**20, dtype=torch.uint8)  # more than malloc keeps from what was freed
    grown = cpu.used_memory() - before
    assert 0.9 * held.nbytes < grown < 2 * held.nbytes
    assert 2**28 < cpu.free_memory() < cpu.total_memory()


def test_the_clock_of_the_host_only_goes_forward():
    device = CPU()
    times = [device.clock() for _ in range(100)]
    assert times == sorted(times)
