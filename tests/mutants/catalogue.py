"""Every planted bug, by the phase that it is planted in."""

import importlib

from tests.mutants.planting import Mutant

MODULES = {
    1: ("phase1", "phase1_stopping", "phase1_sampling"),
    2: ("phase2",),
    3: ("contract", "contract_requests", "phase3"),
    4: ("phase4", "phase4_rows"),
    5: ("phase5", "phase5_preemption", "phase5_schedule", "phase5_prefixes", "phase5_interface"),
    6: ("phase6",),
    7: ("phase7",),
    8: ("phase8",),
    9: ("phase9",),
    10: ("phase10",),
    11: ("phase11", "phase11_traffic"),
}
PHASES = sorted(MODULES)
"""The phases whose tests are held to it that each is failed by a mutant, and by an exercise not yet begun."""


def up_to(phase: int) -> list[Mutant]:
    """Those of `phase` and of the phases before it; later ones are not imported, which would take a second."""
    names = [name for number in PHASES if number <= phase for name in MODULES[number]]
    return [mutant for name in names for mutant in importlib.import_module(f"tests.mutants.{name}").MUTANTS.planted]
