"""Measurements that can be repeated: workloads, interleaved runs, a ledger of raw samples, tables made from it."""
