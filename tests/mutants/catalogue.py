"""Every planted bug."""

from tests.mutants import (
    contract,
    contract_requests,
    phase1,
    phase1_sampling,
    phase1_stopping,
    phase2,
    phase3,
    phase4,
    phase4_rows,
    phase5,
    phase5_interface,
    phase5_preemption,
    phase5_prefixes,
    phase5_schedule,
    phase6,
    phase7,
    phase8,
    phase9,
    phase10,
    phase11,
    phase11_traffic,
)

MODULES = (
    *(contract, contract_requests, phase1, phase1_stopping, phase1_sampling, phase2, phase3),
    *(phase4, phase4_rows),
    *(phase5, phase5_preemption, phase5_schedule, phase5_prefixes, phase5_interface),
    phase6,
    phase7,
    phase8,
    phase9,
    phase10,
    *(phase11, phase11_traffic),
)
MUTANTS = [mutant for module in MODULES for mutant in module.MUTANTS.planted]
PHASES = sorted({mutant.phase for mutant in MUTANTS})
"""The phases whose tests are held to it that each is failed by a mutant, and by an exercise not yet begun."""
