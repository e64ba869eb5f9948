"""Random traces on phase 6: a quantised engine answers each request as its own dequantised model does alone."""

from dataclasses import replace

import pytest
from hypothesis import HealthCheck, given, settings

from minfer.phase6 import Engine
from tests.phase6.quantized import INT4, INT8, twin
from tests.traces.trace import follow, traces

same_every_time = settings(
    derandomize=True,
    deadline=None,
    database=None,
    max_examples=25,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow, HealthCheck.data_too_large],
)


class Original(Engine):
    """Given a dequantised model, quantises the one that it was made from: its codes are not quite their own."""

    def prepare_model(self, model):
        return super().prepare_model(model.made_from[0])


class Dequantized:
    """A lab whose models are what `options` make of the plain ones; `Original` engines serve them quantised."""

    def __init__(self, lab, options):
        self.lab, self.options, self.made = lab, options, {}

    def __getattr__(self, name):
        return getattr(self.lab, name)

    def model(self, family):
        if family not in self.made:
            plain = self.lab.model(family)
            self.made[family] = twin(plain, self.lab.engine(Engine, plain, **self.options))
            self.made[family].module = lambda: self.module(family)
        return self.made[family]

    def module(self, family):
        plain, exact = self.lab.model(family), type(self.made[family]).module(self.made[family])
        exact.made_from = (plain.module(),)  # in a tuple: not a part of the module
        return exact

    def engine(self, engine_cls, model, tokenizer=None, **options):
        given = model.module() if hasattr(model, "oracle") else model
        return self.lab.engine(engine_cls, given, tokenizer, **options)


@pytest.fixture(scope="module")
def dequantized():
    made = {}

    def of(lab, options):
        return made.setdefault(options["quantization"], Dequantized(lab, options))

    return of


@pytest.mark.parametrize("options", [INT8, INT4], ids=["int8", "int4"])
@same_every_time
@given(trace=traces)
def test_every_answer_is_the_dequantised_models_alone(lab, dequantized, options, trace):
    quantised = replace(trace, options={**trace.options, **options})
    follow(dequantized(lab, options), quantised, Original)
