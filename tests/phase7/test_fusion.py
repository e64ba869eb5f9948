"""Fewer products, few graphs for any lengths, nothing left behind by compiling; what is fused answers as before."""

from torch.utils._python_dispatch import TorchDispatchMode

from minfer.course.machines.compiles import Compiles

MOST_GRAPHS = 3
LAYERS = 4  # so that a graph is of several of them
FAMILIES = ("llama", "biased", "qwen3", "gpt2")
PRODUCTS = ("aten::mm", "aten::addmm", "aten::linear", "aten::matmul", "aten::bmm", "minfer::product")


class Products(TorchDispatchMode):
    """Counts matrix products, attention's own aside."""

    def __init__(self):
        super().__init__()
        self.count = 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        self.count += function.name().split(".")[0].rstrip("_") in PRODUCTS
        return function(*args, **(kwargs or {}))


def serve(lab, engine, model, lengths, batch, code, did, hint):
    """Requests of these prompt lengths, `batch` at a time; every step must be right."""
    prompts = [lab.prompt(model, length) for length in lengths]
    for first in range(0, len(prompts), batch):
        for run in lab.run(engine, prompts[first : first + batch], lab.params(4)):
            lab.follows(run, model, code, did, hint)


def test_P7_01_few_graphs_for_any_lengths(engine_cls, lab):
    code, hint = "P7-01", "sizes must reach the compiler as tensors' dimensions, not as Python numbers that it fixes"
    for family in FAMILIES:
        model = lab.model(family)
        seen = Compiles()
        engine = lab.engine(engine_cls, model, compiler=Compiles.name, max_batch=5, token_budget=23, chunk_size=9)
        serve(lab, engine, model, (3, 4, 1), 2, code, f"{family}: served three requests", hint)
        warm = seen.graphs
        did = f"{family}: served prompts of 1 to 20 tokens, 1 to 5 at a time"
        for batch in (5, 1, 3):
            serve(lab, engine, model, range(1, 21), batch, code, did, hint)
        lab.equal(seen.graphs, warm, code, f"{did}; counted the graphs compiled after the first requests", hint)
        lab.check(1 <= warm <= MOST_GRAPHS, code, did, f"1 to {MOST_GRAPHS} graphs", f"{warm}", hint)


def test_P7_02_no_graph_break(engine_cls, lab):
    code, hint = "P7-02", "compile with fullgraph=True: .item(), print and `if` on a tensor's value end a graph"
    for family in FAMILIES:
        model = lab.model(family)
        seen = Compiles()
        engine = lab.engine(engine_cls, model, compiler=Compiles.name)
        serve(lab, engine, model, (5, 2), 2, code, f"{family}: compiled and served two requests", hint)
        lab.equal(seen.breaks, [], code, f"{family}: looked for graph breaks", hint)


def test_P7_05_what_is_compiled_runs(engine_cls, lab):
    code, hint = "P7-05", "the step must go through what torch.compile returned, and errors must not be suppressed"
    model = lab.model(layers=LAYERS)
    seen = Compiles()
    engine = lab.engine(engine_cls, model, compiler=Compiles.name)
    lab.check(seen.graphs > 0, code, "made an engine", "at least one graph to be compiled", "none", hint)
    before = seen.calls
    (run,) = lab.run(engine, lab.prompt(model, 3), lab.params(6))
    lab.follows(run, model, code, "generated 6 tokens", hint)
    least = 6 * (model.config.num_layers - 1)
    ran = seen.calls - before
    did = "generated 6 tokens; counted runs of compiled graphs"
    lab.check(ran >= least, code, did, f"at least {least}: one between any two layers, each step", f"{ran}", hint)
    prompts = [lab.prompt(model, length) for length in (4, 9, 2)]
    for run in lab.run(engine, prompts, lab.params(3)):
        lab.follows(run, model, code, "generated 3 tokens of three requests at once", hint)
    layers_that_differ(engine_cls, lab, model, code)


def layers_that_differ(engine_cls, lab, model, code):
    """One norm's epsilon is another: a constant to the compiler, which the graph of another layer does not have."""
    hint = "a graph that was made of one layer is right for another only if what is constant in it is the same"
    logits, prompt = [], lab.prompt(model, 5)
    for compiler in (Compiles.name, "none"):
        module = model.module()
        module.layers[1].post_attention_layernorm.eps = 0.5
        engine = lab.engine(engine_cls, module, compiler=compiler)
        logits += [run.logits for run in lab.run(engine, [prompt], lab.params(3))]
    did = "changed a norm's epsilon in one layer; compared the logits with those of an engine that is not compiled"
    lab.equal(logits[0], logits[1], code, did, hint)


def test_P7_06_merged_products_are_the_same(engine_cls, lab):
    code, hint = "P7-06", "q, k and v in this order, split by their own widths; gate before up; biases with them"

    def check(family):
        model = lab.model(family)
        engine = lab.engine(engine_cls, model)
        (run,) = lab.run(engine, lab.prompt(model, 7), lab.params(4))
        lab.follows(run, model, code, f"{family}: generated 4 tokens with merged products", hint)

    lab.each(lab.families, check)


def test_P7_20_four_products_in_a_layer(engine_cls, lab):
    code, hint = "P7-20", "q, k, v are one product, gate and up another: the weights are read in four sweeps, not seven"
    model = lab.model()
    engine = lab.engine(engine_cls, model)
    (sequence,) = [engine.submit(lab.prompt(model, 5), lab.params(4))]
    engine.step()
    with Products() as products:
        engine.step()
    lab.equal(len(sequence.output_ids), 2, code, "made two steps", hint)
    most = 4 * model.config.num_layers + 1
    did, asked = "counted the matrix products of a decode step", f"at most {most}: four in a layer, and the head"
    lab.check(products.count <= most, code, did, asked, f"{products.count}", hint)


def test_P7_21_no_second_copy_of_the_weights(engine_cls, lab):
    code, hint = "P7-21", "the layers that were merged must not be kept beside the merged one"
    for family in ("llama", "tied", "gpt2"):
        module = lab.model(family).module()
        before = sum(weight.nbytes for weight in module.parameters())
        engine = lab.engine(engine_cls, module)
        after = sum(weight.nbytes for weight in engine.model.parameters())
        lab.equal(after, before, code, f"{family}: added up the bytes of engine.model's parameters", hint)
        did = f"{family}: added up the bytes of the module given that engine.model does not use"
        own = {id(weight) for weight in engine.model.parameters()}
        beside = sum(weight.nbytes for weight in module.parameters() if id(weight) not in own)
        lab.equal(beside, 0, code, did, hint)


def test_P7_22_warming_up_leaves_nothing_behind(engine_cls, lab):
    code, hint = "P7-22", "run the model itself, on tokens that belong to no request, with attention that has no cache"
    model = lab.model()
    engine = lab.engine(engine_cls, model, compiler=Compiles.name, num_blocks=20, block_size=3)
    fresh = lab.engine(engine_cls, model, compiler="none", num_blocks=20, block_size=3)
    engine.warmup()
    did = "warmed up; compared debug_state() with that of an engine that is not compiled"
    lab.equal(engine.debug_state(), fresh.debug_state(), code, did, hint)
    lab.equal(engine.kv_usage(), fresh.kv_usage(), code, "warmed up; compared kv_usage()", hint)
    held = sum(int(buffer.count_nonzero()) for buffer in lab.caches(model, engine).tensors)
    lab.equal(held, 0, code, "warmed up; counted the numbers in the cache that are not zero", hint)
