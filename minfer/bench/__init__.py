"""Measurements that can be repeated: workloads, interleaved runs, a ledger of raw samples, tables made from it.

What runs an engine to see what it does is here; what its steps should cost is in `minfer.cost`, which runs
none. A whole run is predicted here too: `simulation` runs the real engine on the cost model's clock.
"""
