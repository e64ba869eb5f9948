"""`minfer memory`: what a model needs of a card's memory, and what fits, before anything is loaded."""

from typing import Annotated

import typer
from rich.console import Console

from minfer.commands.memory_report import MemoryReport
from minfer.core.checkpoint import Checkpoint
from minfer.core.checkpoint.shapes import RandomCheckpoint, is_random, random_config
from minfer.core.config import ModelConfig
from minfer.core.device import DTYPES, Device
from minfer.core.device.cards import find_card
from minfer.core.errors import DeviceError, OptionsError
from minfer.core.hub import resolve
from minfer.core.measures.peak_memory import PeakMemory
from minfer.phase2 import Engine, EngineOptions, MemoryBudget
from minfer.phase2.memory import KV_DTYPES
from minfer.phase2.weight_formats import FORMATS

AUTO = "auto"


def memory(
    model: Annotated[str, typer.Argument(help="tiny, a folder, a pulled name, or random:<shape>")] = "tiny",
    gpu: Annotated[str | None, typer.Option(help="A card by name, such as l4 or rtx4090.")] = None,
    memory_gb: Annotated[float | None, typer.Option(help="A card by its memory, in GB of 1e9 bytes.")] = None,
    batch: Annotated[int, typer.Option(help="Sequences in the cache.")] = 1,
    context: Annotated[int | None, typer.Option(help="Tokens of each sequence; default: the model's limit.")] = None,
    dtype: Annotated[str, typer.Option(help=f"The weights: auto, {', '.join(FORMATS)}.")] = AUTO,
    kv_dtype: Annotated[str, typer.Option(help=f"The cache: auto (as computed in), {', '.join(KV_DTYPES)}.")] = AUTO,
    measure: Annotated[bool, typer.Option("--measure", help="Load the model here and measure the peak.")] = False,
    offload_layers: Annotated[int, typer.Option(help="Layers whose weights stay in the host's memory.")] = 0,
) -> None:
    """Show what a model needs of a card's memory (without a card: this machine's), and what fits."""
    memory_command(model, gpu, memory_gb, batch, context, dtype, kv_dtype, measure, Console(), offload_layers)


def memory_command(
    model: str,
    gpu: str | None,
    memory_gb: float | None,
    batch: int,
    context: int | None,
    dtype: str,
    kv_dtype: str,
    measure: bool,
    console: Console,
    offload_layers: int = 0,
) -> None:
    """Print the budget of `model`, made from its config alone; `measure` also loads it. Raises `MinferError`."""
    if measure and offload_layers:
        raise OptionsError("--measure loads the whole model, as phase 2 does: leave out --offload-layers")
    config = random_config(model) if is_random(model) else ModelConfig.from_folder(resolve(model))
    place, total = memory_of(gpu, memory_gb)
    budget = MemoryBudget(
        config,
        total,
        dtype=_auto_dtype(config, gpu, memory_gb) if dtype == AUTO else dtype,
        kv_dtype=None if kv_dtype == AUTO else kv_dtype,
        batch=batch,
        context=context,
        offload_layers=offload_layers,
    )
    report = MemoryReport(budget, console)
    report.print(model, place)
    if measure:
        device = Device.get()
        report.print_loading(device.torch_device.type, loading_peak(model, budget, device))


def memory_of(gpu: str | None, memory_gb: float | None) -> tuple[str, int]:
    """A name for the memory that is asked about, and its bytes; without a card, this machine's."""
    if gpu is not None and memory_gb is not None:
        raise OptionsError(f"--gpu {gpu} and --memory-gb {memory_gb:g} both name a card: give one of them")
    if gpu is not None:
        card = find_card(gpu)
        return card.title, card.memory
    if memory_gb is not None:
        if not 0 < memory_gb < 1e6:
            raise OptionsError(f"--memory-gb {memory_gb:g}: give the card's memory in GB, such as 24")
        return f"a card of {memory_gb:g} GB", round(memory_gb * 1e9)
    device = Device.get()
    return f"this machine ({device.torch_device.type})", device.total_memory()


def loading_peak(model: str, budget: MemoryBudget, device: Device) -> int:
    """Load the model's weights as phase 2 does, and return the most bytes held on the way. Raises `MinferError`."""
    if budget.dtype not in DTYPES:
        raise OptionsError(f"--measure loads the model, and phase 2 loads {', '.join(DTYPES)}: not {budget.dtype}")
    if budget.loading_peak > device.free_memory():
        needed, free = budget.loading_peak / 1e9, device.free_memory() / 1e9
        raise DeviceError(f"--measure would need {needed:.1f} GB on this machine, and {free:.1f} GB are free")
    checkpoint = RandomCheckpoint(model) if is_random(model) else Checkpoint(resolve(model))
    with PeakMemory(device) as peak:
        Engine.build_model(checkpoint, EngineOptions(device=device, dtype=budget.dtype))
    return peak.bytes


def _auto_dtype(config: ModelConfig, gpu: str | None, memory_gb: float | None) -> str:
    """The stored dtype (float32 where the config is silent, as in `transformers`), or what this machine makes of it."""
    stored = (config.dtype or "float32").removeprefix("torch.")
    if gpu is not None or memory_gb is not None or stored not in DTYPES:
        return stored
    return str(Device.get().dtype(AUTO, DTYPES[stored])[0]).removeprefix("torch.")
