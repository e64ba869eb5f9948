"""Where the host does all the work itself, nothing is launched ahead: no token is shown late, none computed in vain."""

from minfer.phase8 import Engine as Phase8Engine
from minfer.phase9 import Engine


def test_on_a_cpu_steps_are_those_of_phase_8(lab):
    seen = []
    for engine_cls in (Phase8Engine, Engine):
        model = lab.scripted(2, [9, 8, 7, 6, 5], eos_token_id=7)
        engine = lab.engine(engine_cls, model, lab.tokenizer(eos=[7]), num_blocks=20, block_size=4)
        shown = []
        for piece in engine.stream([5, 6], lab.params(9, ignore_eos=False)):
            shown.append((piece, len(engine.record.forwarded)))
        seen.append((shown, engine.record.forwarded))
    assert seen[0] == seen[1]
    assert engine.overlap_usage() == {"overlapped": 0, "alone": {"host": 3}}
