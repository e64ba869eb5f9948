"""Engine: the loop that all eleven phases share, and its hooks.

    load -> build_model -> prepare_model -> allocate          once
    generate / stream -> run -> admit -> execute … -> release      per request
    execute = launch (prepare -> forward -> sample) -> commit          per step

A later phase overrides the hooks that its optimisation is about, and nothing else.
"""

from collections.abc import Iterator
from typing import Any, cast

import torch
from torch import Tensor, nn

from minfer.core.attention import CausalAttention
from minfer.core.batch import ForwardBatch
from minfer.core.checkpoint import Checkpoint
from minfer.core.config import ModelConfig
from minfer.core.device import Device
from minfer.core.errors import RequestError
from minfer.core.models import model_class, open_model
from minfer.core.options import EngineOptions, make_options
from minfer.core.prompts import Params, Prompt, PromptReader, Prompts
from minfer.core.sampling import check_sampled, sample
from minfer.core.sampling.logprobs import prompt_logprobs, record_logprobs
from minfer.core.sequence import Completion, FinishReason, Sequence, Status
from minfer.core.tokenizer import Tokenizer


class Engine:
    """Generates text from a model, one request after another, recomputing every token at every step."""

    Options: type[EngineOptions] = EngineOptions

    @classmethod
    def load(cls, model: str = "tiny", **options: Any) -> "Engine":
        """An engine for `model`: "tiny", a folder, a name pulled before, or "random:<shape>".

        Options are the fields of `cls.Options`. Raises `MinferError` for a model, option or device that is not there.
        """
        checked = make_options(cls.Options, options)
        checkpoint, tokenizer = open_model(model)
        return cls(cls.build_model(checkpoint, checked), tokenizer, checked)

    def __init__(self, model: nn.Module, tokenizer: Tokenizer | None, options: EngineOptions | None = None) -> None:
        """Take a model with the forward of `Transformer` and a `config`; without a tokenizer, prompts are token ids."""
        self.options = options or self.Options()
        self.device = Device.of(model, self.options.device)
        self.config = cast(ModelConfig, model.config)
        self.dtype = next((p.dtype for p in model.parameters()), torch.float32)
        self.context = self.options.context_within(self.config.context)
        self.tokenizer = tokenizer
        self.reader = PromptReader(tokenizer, self.config.vocab_size, self.context, self.config.eos_token_ids)
        self.model = self.prepare_model(model.eval().requires_grad_(False))
        self.allocate()

    # ---- hooks that run once ------------------------------------------------------------------------------------

    @classmethod
    def build_model(cls, checkpoint: Checkpoint, options: EngineOptions) -> nn.Module:
        """Checkpoint -> module: build it in host memory, fill it, then move the whole."""
        device = Device.get(options.device)
        dtype, _ = device.dtype(options.dtype, checkpoint.dtype)
        model = model_class(checkpoint.config)(checkpoint.config).to(dtype)
        parameters = dict(model.named_parameters())
        for name, stored in checkpoint.plan(model).items():
            stored.read_into(parameters[name].data)
        return model.to(device.torch_device)

    def prepare_model(self, model: nn.Module) -> nn.Module:
        """Module -> module, before the first step."""
        return model

    def allocate(self) -> None:
        """Memory that lives as long as the engine: none here, every step starts from nothing."""

    # ---- the public interface, the same in all phases ------------------------------------------------------------

    def generate(self, prompts: Prompts, params: Params = None) -> list[Completion]:
        """Answer one prompt or a list of them (strings, token ids, chat messages), in the order asked.

        `params`: one `SamplingParams` or one per prompt; n > 1 gives n completions in a row. Raises `RequestError`
        before anything is run.
        """
        sequences = self.sequences(prompts, params)
        for _ in self.run(sequences):
            pass
        return [sequence.completion() for sequence in sequences]

    def stream(self, prompt: Prompt, params: Params = None) -> Iterator[str]:
        """The text of one completion, piece by piece as it becomes certain; the pieces join to its `text`."""
        sequence, *others = self.sequences([prompt], params)
        if others:
            raise RequestError(f"a stream shows one sample, not n = {1 + len(others)}: use generate, or stream n times")
        return self._pieces(sequence)

    def _pieces(self, sequence: Sequence) -> Iterator[str]:
        for _ in self.run([sequence]):
            if piece := sequence.take_text():
                yield piece
        if piece := sequence.take_text():  # what only the end made certain
            yield piece

    def sequences(self, prompts: Prompts, params: Params = None) -> list[Sequence]:
        """Checked sequences of the prompts, ready to `run`. Raises `RequestError`."""
        return self.reader.sequences(prompts, params, arrived=self.device.clock())

    # ---- hooks of the order of work ------------------------------------------------------------------------------

    def run(self, sequences: list[Sequence]) -> Iterator[list[Sequence]]:
        """Work until all are finished; yields after each step the sequences that it advanced."""
        for group in self.groups(sequences):
            try:
                self.admit(group)
                while running := [sequence for sequence in group if not sequence.finished]:
                    yield self.execute(running)
            finally:
                for sequence in group:
                    sequence.finish(FinishReason.ABORT, self.device.clock())
                    self.release(sequence)

    def groups(self, sequences: list[Sequence]) -> list[list[Sequence]]:
        """Who runs together: here each alone."""
        return [[sequence] for sequence in sequences]

    def admit(self, sequences: list[Sequence]) -> None:
        """Make room for sequences that are about to run."""
        for sequence in sequences:
            self.start(sequence)

    def release(self, sequence: Sequence) -> None:
        """Give back what `admit` reserved; also after an error, and when a stream is closed early."""

    # ---- hooks of a step -----------------------------------------------------------------------------------------

    def execute(self, sequences: list[Sequence]) -> list[Sequence]:
        """One step: launch it, then commit what it draws. Returns the sequences that got a token."""
        drawing, token_ids = self.launch(sequences)
        self.commit(drawing, token_ids)
        return drawing

    @torch.inference_mode()
    def launch(self, sequences: list[Sequence]) -> tuple[list[Sequence], Tensor]:
        """Prepare, forward, sample: all that the device does in a step.

        Returns the sequences that get a token, and the tokens: int64 `(R,)`, one for each of them, on the device.
        """
        batch = self.prepare(sequences)
        logits = self.forward(batch)
        token_ids = self.sample(logits, batch.sequences)
        for sequence in sequences:
            sequence.num_cached += sequence.num_scheduled
            sequence.num_scheduled = 0
        return batch.sequences, token_ids

    def prepare(self, sequences: list[Sequence]) -> ForwardBatch:
        """The step's tensors: all tokens of the one sequence; logits are needed of the last."""
        (sequence,) = sequences
        return self.whole(sequence.token_ids, [sequence])

    def forward(self, batch: ForwardBatch) -> Tensor:
        """Logits `(R, vocab)` of the batch's rows."""
        return self.model(batch.input_ids, batch.positions, batch.attention, batch.rows)

    def sample(self, logits: Tensor, sequences: list[Sequence]) -> Tensor:
        """Draw one token per row: logits `(R, vocab)` -> int64 `(R,)` on the same device."""
        token_ids = sample(logits, sequences)
        record_logprobs(logits, token_ids, sequences)
        return token_ids

    def commit(self, sequences: list[Sequence], token_ids: Tensor) -> None:
        """Read the tokens (the step's one transfer to the host), append them, apply the stop rules."""
        drawn = token_ids.tolist()
        check_sampled(drawn)
        now = self.device.clock()
        for sequence, token_id in zip(sequences, drawn, strict=True):
            sequence.append(token_id, now)

    # ---- shared by the hooks -------------------------------------------------------------------------------------

    def start(self, sequence: Sequence) -> None:
        """Note that a sequence runs from now on; score its prompt if it asked for that."""
        sequence.timestamps.scheduled = self.device.clock()
        if not sequence.finished:
            sequence.status = Status.RUNNING
        if sequence.params.prompt_logprobs is not None:
            self.score(sequence)
        if sequence.finished:  # max_tokens = 0: this was all
            sequence.timestamps.finished = self.device.clock()

    def whole(self, token_ids: list[int], sequences: list[Sequence]) -> ForwardBatch:
        """A batch of all `token_ids`, attended without a cache; logits of the last row."""
        device = self.device.torch_device
        input_ids = torch.tensor(token_ids, device=device)
        positions = torch.arange(len(token_ids), device=device)
        by_window = {window: CausalAttention(window) for window in set(self.config.windows)}
        attention = [by_window[window] for window in self.config.windows]
        return ForwardBatch(input_ids, positions, attention, positions[-1:], sequences)

    @torch.inference_mode()
    def score(self, sequence: Sequence) -> None:
        """Log-probabilities of the prompt's own tokens, by a forward of their own without a cache."""
        batch = self.whole(sequence.prompt_ids, [])
        batch.rows = batch.positions
        sequence.prompt_logprobs = prompt_logprobs(self.forward(batch), sequence)
