"""The cost model: what a step must read, write and compute, how long hardware takes for it, and why two runs differ.

formulas     a step's bytes and FLOPs, from a model's config and the step's sizes alone
counting     the same, counted call by call in a run: what the formulas are tested with
hardware     rates of a machine: from data sheets, each with its source, or measured by `minfer calibrate`
part_clock   what the parts of an engine's forwards take, while it runs as it always does
real_steps   steps of many sizes under that clock
fitting      an engine's rates, from its real steps
calibration  a machine's rates: of memory and operators by `probes`, of engines by `fitting`
cost_model   formulas over rates: seconds of a step, by part
simulation   the real engine and its scheduler on a clock that the cost model moves: latencies of a whole run
waterfall    the difference of two measured rows, shared out among the parts
"""
