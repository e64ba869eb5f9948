"""The cost model: what a step must read, write and compute, how long hardware takes for it, and why two runs differ.

It computes; nothing here runs an engine. `minfer.bench` builds on it, and `minfer.calibration` on both.

formulas     a step's bytes and FLOPs, from a model's config and the step's sizes alone
counting     what the operators of a run compute and move, call by call: what the formulas are tested with
operations   a forward's calls beside products and attention, counted on a model that has shapes only
hardware     rates of a machine: from data sheets, each with its source, or measured by `minfer calibrate`
cost_model   formulas over rates: seconds of a step, by part
published    what others measured, beside what the model says of it
waterfall    the difference of two measured rows, shared out among the parts
"""
