"""What an engine holds goes with it: no cycle keeps a cache until a collector happens to run."""

import gc
import importlib
import weakref

import pytest

from minfer.core.config import ModelConfig
from minfer.core.model import Transformer
from minfer.course.lab.families import Sizes, family_facts


@pytest.mark.parametrize("phase", [3, 4, 5])
def test_a_cache_is_freed_with_its_engine(phase):
    base = importlib.import_module(f"minfer.phase{phase}").Engine
    config = ModelConfig.from_dict(family_facts(Sizes.draw(1))["llama"])
    engine = base(Transformer(config).double(), None)
    engine.generate([[5, 6, 7]])
    cache = weakref.ref(engine.cache)
    gc.disable()
    try:
        del engine
        assert cache() is None
    finally:
        gc.enable()
