"""CostModel: seconds of a step, by part, from the step's bytes and FLOPs and a machine's rates.

    products        their weights at the machine's bandwidth are `weights`; what they take beyond that is `arithmetic`
    attention       `kv`; by formula, what it computes takes longer than reading is `arithmetic` too
    gathering       `copies`
    other calls     `launches`: the host's time for each, or the device's, and the numbers that they move
    ranks           `communication`: two all-reduces a layer, and the gathering of logits
    between steps   `host`

Where the host runs ahead of the device (`asynchronous`), launches are what the host takes longer than the device.
"""

from dataclasses import asdict, dataclass, fields

from minfer.core.config import ModelConfig
from minfer.cost import operations
from minfer.cost.formulas import Formulas, Product, Step
from minfer.cost.hardware import EngineRates, Hardware
from minfer.cost.operations import PAGED_CALLS, Operations

FUSED, GRAPHS, PAGED = 7, 8, 5  # the phases from which on a step is so


@dataclass(frozen=True)
class Setup:
    """An engine, as far as its speed depends on it."""

    config: ModelConfig
    phase: int = 3
    weights: str = "float32"  # a `WeightFormat`'s name
    computed: str | None = None  # dtype of rows and cache; default: as the weights, bfloat16 if they are quantised
    ranks: int = 1
    operations: int | None = None  # a layer's operators where it is another program's, counted in its source

    @property
    def kernels(self) -> str:
        """Under which name a calibrated machine has engines like this one."""
        fused = ", fused" if self.phase >= FUSED else ""
        return f"{self.weights}{fused}" + (f", {self.ranks} ranks" if self.ranks > 1 else "")


@dataclass(frozen=True)
class Terms:
    """Seconds of a step, or sums of them."""

    weights: float = 0.0
    kv: float = 0.0
    copies: float = 0.0
    arithmetic: float = 0.0
    launches: float = 0.0
    communication: float = 0.0
    host: float = 0.0

    @property
    def total(self) -> float:
        """All of it."""
        return sum(asdict(self).values())

    def __add__(self, other: "Terms") -> "Terms":
        return Terms(*(getattr(self, term.name) + getattr(other, term.name) for term in fields(Terms)))


class CostModel:
    """One engine on one machine."""

    def __init__(self, setup: Setup, hardware: Hardware) -> None:
        self.setup, self.hardware = setup, hardware
        self.formulas = Formulas(setup.config, setup.weights, setup.computed)
        self.dtype = self.formulas.computed

    def step(self, step: Step) -> Terms:
        """Seconds of one step: by what such an engine took on this machine, if that was timed; else by its rates."""
        rates = self.hardware.engines.get(self.setup.kernels)
        return self.by_formula(step) if rates is None else self.as_timed(step, rates)

    def limit(self, step: Step) -> float:
        """Seconds that no program can beat: what must be moved at the peak bandwidth, or computed at the best rate."""
        work, hardware = self.formulas.work(step), self.hardware
        fastest = max(hardware.flops.values())
        return max(work.nbytes / hardware.peak_bandwidth, work.flops / fastest) / self.setup.ranks

    # ---- by what real steps took -------------------------------------------------------------------------------

    def as_timed(self, step: Step, rates: EngineRates) -> Terms:
        """The parts of real steps, at this step's sizes."""
        work, layers = self.formulas.work(step), self.setup.config.num_layers
        products = {"layers": rates.layers, "head": rates.head}
        multiplying = sum(products[one.part].seconds(one.rows) * one.weights for one in work.products)
        weights = min(multiplying, work.weights_read / self.hardware.bandwidth)
        compiled = rates.compiled if only_decodes(step) else None
        gathering = layers * rates.gather.seconds(work.copied / layers) if work.copied and compiled is None else 0.0
        return Terms(
            weights=weights,
            kv=layers * self.attention(step, rates),
            copies=gathering,
            arithmetic=multiplying - weights,
            launches=layers * (compiled or rates.beside).seconds(step.tokens),
            communication=rates.communication.seconds(self.messages(step)) if rates.communication else 0.0,
            host=rates.host.seconds(len(step.queries)),
        )

    def attention(self, step: Step, rates: EngineRates) -> float:
        """Seconds of a layer's attention: single tokens by what they read together, prompts by what each computes."""
        decodes, prompts = attended(step)
        layers = self.setup.config.num_layers
        took = rates.decode.seconds(decode_bytes(step, self.formulas) / layers) if decodes else 0.0
        return took + rates.prefill.seconds(prompt_flops(step, self.formulas) / layers, calls=len(prompts))

    # ---- by a machine's rates ------------------------------------------------------------------------------------

    def by_formula(self, step: Step) -> Terms:
        """Bytes over bandwidth, FLOPs over their rate, calls times what one costs."""
        work, ranks = self.formulas.work(step), self.setup.ranks
        products = [self.product(one) for one in work.products]
        attention = max(work.kv_read / self.hardware.bandwidth, prompt_flops(step, self.formulas) / self.rate) / ranks
        kv = min(attention, work.kv_read / self.hardware.bandwidth / ranks)
        device = Terms(
            weights=sum(read for read, _ in products),
            kv=kv,
            copies=work.copied / self.hardware.bandwidth / ranks,
            arithmetic=sum(seconds - read for read, seconds in products) + attention - kv,
        )
        launches = self.launches(step, device.total)
        return device + Terms(launches=launches, communication=self.communication(step))

    def product(self, product: Product) -> tuple[float, float]:
        """Seconds that its weights take to be read, and that it takes in all."""
        hardware, ranks = self.hardware, self.setup.ranks
        read = product.nbytes / hardware.bandwidth / ranks
        reach = hardware.reach.get(self.setup.weights.partition("-")[0], 1.0)
        return read, max(read / reach, product.flops / self.rate / ranks)

    @property
    def rate(self) -> float:
        """FLOPs per second of products in the dtype that is computed in; of the nearest that the machine tells."""
        flops = self.hardware.flops
        return flops.get(self.dtype) or flops.get("float32") or max(flops.values())

    def launches(self, step: Step, device: float) -> float:
        """Seconds that operators cost because they are operators, `device` being what their work takes."""
        hardware, config = self.hardware, self.setup.config
        counted = self.operations(step)
        moved = counted.nbytes / (hardware.moved or hardware.bandwidth)
        calls = counted.products + counted.others + config.num_layers
        if self.setup.phase >= PAGED:
            calls += PAGED_CALLS * config.num_layers
        if self.setup.operations is not None:
            calls = self.setup.operations * config.num_layers
        if not hardware.asynchronous:
            return calls * hardware.operation + moved
        on_device = calls * hardware.kernel + moved
        if self.setup.phase >= GRAPHS:
            return on_device
        return on_device + max(0.0, calls * hardware.operation - device - on_device)

    def operations(self, step: Step) -> Operations:
        """Calls of the forward beside attention."""
        count = operations.compiled if self.setup.phase >= FUSED else operations.eager
        return count(self.setup.config, step.tokens, step.rows, self.formulas.itemsize)

    def communication(self, step: Step) -> float:
        """Seconds between ranks: two sums a layer, and the logits' parts."""
        link = self.hardware.link
        if self.setup.ranks == 1 or link is None:
            return 0.0
        return link.seconds(self.messages(step), calls=2 * self.setup.config.num_layers + 1)

    def messages(self, step: Step) -> float:
        """Bytes that a rank must send in a step: rings of 2·(t - 1)/t of a message, two a layer, and its logits."""
        ranks, config, itemsize = self.setup.ranks, self.setup.config, self.formulas.itemsize
        message = 2 * (ranks - 1) / ranks * step.tokens * config.hidden_size * itemsize
        return 2 * config.num_layers * message + (ranks - 1) / ranks * step.rows * config.vocab_size * itemsize


def attended(step: Step) -> tuple[list[int], list[tuple[int, int]]]:
    """The contexts of single tokens; queries and contexts of chunks."""
    pairs = list(zip(step.queries, step.contexts, strict=True))
    return [context for query, context in pairs if query == 1], [pair for pair in pairs if pair[0] > 1]


def only_decodes(step: Step) -> bool:
    """Whether every request has a single token in it."""
    return all(query == 1 for query in step.queries)


def decode_bytes(step: Step, formulas: Formulas) -> int:
    """Bytes of keys and values that attention reads for single tokens, over all layers."""
    return sum(attended(step)[0]) * formulas.cost.kv_bytes


def prompt_flops(step: Step, formulas: Formulas) -> float:
    """FLOPs of chunks' attention, over all layers; that of single tokens takes as long as what it reads."""
    return sum(query * context for query, context in attended(step)[1]) * formulas.cost.per_pair
