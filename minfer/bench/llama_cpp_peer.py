"""llama.cpp as a contestant, through the low-level calls of `llama-cpp-python`, on the weights of minfer's model."""

import ctypes
import importlib
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from minfer.bench.contestants import checked
from minfer.bench.gguf_file import write_gguf
from minfer.bench.sample import Sample
from minfer.bench.workloads import Request, Workload
from minfer.core.errors import MissingExtra

Part = tuple[int, list[int], int]  # of a step: sequence, token ids, position of the first
UBATCH = 512  # tokens that llama.cpp computes at once: its own default, and minfer's token budget


def bindings() -> Any:
    """The module of llama.cpp's C functions. Raises `MissingExtra`: it is a peer, no extra of minfer's installs it."""
    try:
        return importlib.import_module("llama_cpp.llama_cpp")
    except ImportError as error:
        raise MissingExtra("llama.cpp is measured through llama-cpp-python: pip install llama-cpp-python") from error


class LlamaCppContestant:
    """Sequences that decode together, one token each per step, greedily, all requests at once.

    Attention, cache (float16) and kernels are llama.cpp's defaults; a sequence has its own part of the cache.
    """

    def __init__(self, model: nn.Module, kind: str, folder: Path) -> None:
        """`kind` is one of `gguf_file.KINDS`; the file is written to `folder` and must stay while this is used."""
        self.name = f"llama.cpp {kind}"
        self.api = bindings()
        self._silence = self.api.llama_log_callback(lambda level, text, data: None)
        self.api.llama_log_set(self._silence, None)
        path = folder / f"{kind}.gguf"
        write_gguf(model, kind, path)
        self.weight_bytes = path.stat().st_size
        self.vocab_size: int = model.config.vocab_size  # type: ignore[union-attr, assignment]
        self.model = self.api.llama_model_load_from_file(bytes(path), self.api.llama_model_default_params())
        if not self.model:
            raise RuntimeError(f"llama.cpp cannot load the {kind} file that was written for it")

    def run(self, workload: Workload) -> Sample:
        """All requests side by side, from the prompts to the last token; making the empty cache is not timed.

        Their tokens are in `answers` afterwards.
        """
        context = self._context(workload.requests)
        try:
            return checked(self._answer(context, workload.requests), workload, self.name)
        finally:
            self.api.llama_free(context)

    def effective(self) -> dict[str, Any]:
        """What the figures belong to."""
        return {"weight_bytes": self.weight_bytes, "kernels": "llama.cpp's own"}

    def _context(self, requests: list[Request]) -> Any:
        """A context with room for each request, in parts of one size."""
        params = self.api.llama_context_default_params()
        longest = max(len(request.prompt_ids) + (request.params.max_tokens or 0) for request in requests)
        params.n_seq_max = len(requests)
        params.n_ctx = len(requests) * -(-longest // 256) * 256  # llama.cpp's own granularity
        params.n_batch = max(UBATCH, sum(len(request.prompt_ids) for request in requests))
        params.n_ubatch = UBATCH
        params.n_threads = params.n_threads_batch = torch.get_num_threads()
        context = self.api.llama_init_from_model(self.model, params)
        if not context:
            raise RuntimeError(f"llama.cpp has no room for {len(requests)} sequences of {longest} tokens")
        return context

    def _answer(self, context: Any, requests: list[Request]) -> Sample:
        """Prompts first, then one step per token; a sequence that has its tokens leaves."""
        start, decode_seconds, fed = time.perf_counter(), 0.0, 0
        self.answers: list[list[int]] = [[] for _ in requests]
        times: list[list[float]] = [[] for _ in requests]
        step: list[Part] = [(number, request.prompt_ids, 0) for number, request in enumerate(requests)]
        while step:
            before = time.perf_counter()
            logits = self._decode(context, step)
            decode_seconds += time.perf_counter() - before
            fed += sum(len(token_ids) for _, token_ids, _ in step)
            drawn = logits.argmax(axis=1).tolist()
            now = time.perf_counter() - start
            following: list[Part] = []
            for (number, token_ids, position), token_id in zip(step, drawn, strict=True):
                self.answers[number].append(token_id)
                times[number].append(now)
                if len(times[number]) < (requests[number].params.max_tokens or 0):
                    following.append((number, [token_id], position + len(token_ids)))
            step = following
        duration = time.perf_counter() - start
        facts = {"forward_s": decode_seconds, "tokens_fed": float(fed), "host_share": 1 - decode_seconds / duration}
        return Sample(times, duration, facts)

    def _decode(self, context: Any, step: list[Part]) -> np.ndarray:
        """Logits `(R, vocab)` after the last token of each part, in their order; valid until the next call."""
        count = sum(len(token_ids) for _, token_ids, _ in step)
        batch = self.api.llama_batch_init(count, 0, 1)
        try:
            for number, token_ids, position in step:
                for offset, token_id in enumerate(token_ids):
                    at = batch.n_tokens
                    batch.token[at], batch.pos[at] = token_id, position + offset
                    batch.n_seq_id[at], batch.seq_id[at][0] = 1, number
                    batch.logits[at] = offset == len(token_ids) - 1
                    batch.n_tokens += 1
            if status := self.api.llama_decode(context, batch):
                raise RuntimeError(f"{self.name}: llama_decode returned {status} for {count} tokens")
            logits = self.api.llama_get_logits(context)
        finally:
            self.api.llama_batch_free(batch)
        return np.ctypeslib.as_array(ctypes.cast(logits, ctypes.POINTER(ctypes.c_float)), (len(step), self.vocab_size))
