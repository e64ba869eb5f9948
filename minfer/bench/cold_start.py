"""What a user waits for before the first token: the start of a process, and the memory that loading takes."""

import json
import subprocess
import sys
import time
from pathlib import Path

_LOAD = """
import json, sys

import torch

from minfer.core.checkpoint import Checkpoint
from minfer.core.device import Device
from minfer.core.measures.peak_memory import PeakMemory
from minfer.phase2 import Engine, EngineOptions
checkpoint, options = Checkpoint(sys.argv[1]), EngineOptions(device="cpu", dtype=sys.argv[2])
torch.zeros(1)
with PeakMemory(Device.get("cpu")) as peak:
    model = Engine.build_model(checkpoint, options)
weights = [parameter.nbytes for parameter in model.parameters()]
print(json.dumps({"peak": peak.bytes, "weights": sum(weights), "largest": max(weights)}))
"""


def first_token_seconds() -> float:
    """From the start of `minfer generate` with the embedded model to the first byte of its answer."""
    command = [sys.executable, "-m", "minfer", "generate", "To be, or not", "-m", "tiny", "--max-tokens", "8"]
    start = time.perf_counter()
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as process:
        assert process.stdout is not None
        process.stdout.read(1)
        seconds = time.perf_counter() - start
        process.stdout.read()
    return seconds


def loading_peak(folder: Path, dtype: str) -> dict[str, int]:
    """Bytes at the peak of loading in phase 2, of the final weights, and of the largest tensor; in a new process."""
    command = [sys.executable, "-c", _LOAD, str(folder), dtype]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return json.loads(done.stdout.splitlines()[-1])
