"""Every planted bug."""

from tests.mutants import contract, contract_requests, phase1, phase1_sampling, phase1_stopping, phase2, phase3

MODULES = (contract, contract_requests, phase1, phase1_stopping, phase1_sampling, phase2, phase3)
MUTANTS = [mutant for module in MODULES for mutant in module.MUTANTS.planted]
