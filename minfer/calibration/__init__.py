"""Calibration: this machine's rates, measured with the benchmark's engines, as the cost model takes them.

real_steps   steps of many sizes, each with what its parts took
fitting      an engine's rates, from its real steps
calibrate    a machine's rates: of memory and operators by probes, of engines by `fitting`
check        other steps of the same engines, beside their predictions
"""
