"""CostModel: seconds of a step, by part, from the step's bytes and FLOPs and a machine's rates.

    products        their weights at the machine's bandwidth are `weights`; what they take beyond that is `arithmetic`
    attention       `kv`, and what its own arithmetic takes beyond reading
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
from minfer.cost.hardware import Hardware
from minfer.cost.operations import PAGED_CALLS, Operations

COMPILED = "float32, compiled"
"""Under which name a calibrated machine has decode attention that is compiled with what surrounds it."""
FUSED, GRAPHS, PAGED, CACHED = 7, 8, 5, 3  # the phases from which on a step is so


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
        """Under which name a calibrated machine has this engine's products."""
        return f"{self.weights}, fused" if self.phase >= FUSED else self.weights


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
        """Seconds of one step."""
        work = self.formulas.work(step)
        products = [self.product(one) for one in work.products]
        attention = self.attention(step)
        kv = min(attention, work.kv_read / self.hardware.bandwidth / self.setup.ranks)
        device = Terms(
            weights=sum(read for read, _ in products),
            kv=kv,
            copies=0.0 if self.is_compiled(step) else self.copies(work.copied),
            arithmetic=sum(seconds - read for read, seconds in products) + attention - kv,
        )
        launches = self.launches(step, device.total)
        host = self.hardware.step + len(step.queries) * self.hardware.request
        return device + Terms(launches=launches, communication=self.communication(step), host=host)

    def limit(self, step: Step) -> float:
        """Seconds that no program can beat: what must be moved at the peak bandwidth, or computed at the best rate."""
        work, hardware = self.formulas.work(step), self.hardware
        fastest = max(hardware.flops.values())
        return max(work.nbytes / hardware.peak_bandwidth, work.flops / fastest) / self.setup.ranks

    def product(self, product: Product) -> tuple[float, float]:
        """Seconds that its weights take to be read, and that it takes in all."""
        hardware, ranks = self.hardware, self.setup.ranks
        read = product.nbytes / hardware.bandwidth / ranks
        curves = hardware.products.get(self.setup.kernels)
        if curves is None:
            reach = hardware.reach.get(self.setup.weights.partition("-")[0], 1.0)
            return read, max(read / reach, product.flops / self.rate / ranks)
        seconds = curves[product.part].seconds(product.rows) * product.weights / ranks
        return min(read, seconds), seconds

    @property
    def rate(self) -> float:
        """FLOPs per second of products in the dtype that is computed in; of the nearest that the machine tells."""
        flops = self.hardware.flops
        return flops.get(self.dtype) or flops.get("float32") or max(flops.values())

    def attention(self, step: Step) -> float:
        """Seconds of all layers' attention: decodes by what they read, prompts by what they compute."""
        hardware, config, ranks = self.hardware, self.setup.config, self.setup.ranks
        decodes = [context for query, context in zip(step.queries, step.contexts, strict=True) if query == 1]
        prompts = [(q, s) for q, s in zip(step.queries, step.contexts, strict=True) if q > 1]
        layer = self.formulas.cost.kv_bytes / config.num_layers
        nbytes, flops = sum(decodes) * layer, sum(q * s for q, s in prompts) * self.formulas.cost.per_pair
        if self.is_compiled(step):
            return hardware.decode[COMPILED].seconds(nbytes) * config.num_layers / ranks
        if self.dtype not in hardware.decode:
            read = (nbytes + sum(s for _, s in prompts) * layer) * config.num_layers / hardware.bandwidth
            return max(read, flops / self.rate) / ranks
        decode, prefill = hardware.decode[self.dtype], hardware.prefill[self.dtype]
        made = decode.seconds(nbytes) if decodes else 0.0
        made += prefill.seconds(flops / config.num_layers, calls=len(prompts)) if prompts else 0.0
        return made * config.num_layers / ranks

    def is_compiled(self, step: Step) -> bool:
        """Whether attention is in the compiled regions, where it reads the pool in place."""
        known = self.dtype == "float32" and COMPILED in self.hardware.decode
        return known and self.setup.phase >= FUSED and all(query == 1 for query in step.queries)

    def copies(self, copied: int) -> float:
        """Seconds of gathering pages; `copied` bytes are read and written, over all layers."""
        hardware, layers = self.hardware, self.setup.config.num_layers
        if not copied:
            return 0.0
        line = hardware.gather.get(self.dtype)
        if line is None:
            return copied / hardware.bandwidth / self.setup.ranks
        return layers * line.seconds(copied / layers) / self.setup.ranks

    def launches(self, step: Step, device: float) -> float:
        """Seconds that operators cost because they are operators, `device` being what their work takes."""
        hardware, config = self.hardware, self.setup.config
        kind = "fused" if self.setup.phase >= FUSED else "eager" if self.formulas.itemsize >= 4 else "eager in 16 bits"
        if kind in hardware.layer:
            return config.num_layers * hardware.layer[kind].seconds(step.tokens)
        counted = self.operations(step)
        moved = counted.nbytes / (hardware.moved or hardware.bandwidth)
        if not hardware.asynchronous:  # products and attention have been timed with their calls
            return counted.others * hardware.operation + moved
        calls = counted.products + counted.others + config.num_layers
        if self.setup.phase >= PAGED:
            calls += PAGED_CALLS * config.num_layers
        if self.setup.operations is not None:
            calls = self.setup.operations * config.num_layers
        on_device = calls * hardware.kernel + moved
        if self.setup.phase >= GRAPHS:
            return on_device
        return on_device + max(0.0, calls * hardware.operation - device - on_device)

    def operations(self, step: Step) -> Operations:
        """Calls of the forward beside attention."""
        count = operations.compiled if self.setup.phase >= FUSED else operations.eager
        return count(self.setup.config, step.tokens, step.rows, self.formulas.itemsize)

    def communication(self, step: Step) -> float:
        """Seconds between ranks: rings of 2·(t - 1)/t of a message, two a layer, and the logits' parts."""
        ranks, link, config = self.setup.ranks, self.hardware.link, self.setup.config
        if ranks == 1 or link is None:
            return 0.0
        message = 2 * (ranks - 1) / ranks * step.tokens * config.hidden_size * self.formulas.itemsize
        logits = (ranks - 1) / ranks * step.rows * config.vocab_size * self.formulas.itemsize
        calls = 2 * config.num_layers + 1
        return link.seconds(2 * config.num_layers * message + logits, calls)
