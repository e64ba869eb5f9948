"""The bodies of requests: OpenAI's fields and a few that vLLM's clients send besides, each with its type and range.

Numbers have the ranges of `SamplingParams`, whose fields they become, so the two cannot come apart. Types are strict:
a string is no number. `null` means: as if it were not there. Fields that are not known are ignored, as OpenAI's clients
expect of an older server; fields that ask for what this server does not do are refused.
"""

from dataclasses import fields
from typing import Annotated, Any, ClassVar, Literal

from annotated_types import MaxLen
from pydantic import BaseModel, ConfigDict, Field, StringConstraints

from minfer.core.params import Range, SamplingParams
from minfer.serve.errors import unsupported

RANGES: dict[str, Range] = {
    field.name: field.metadata["range"] for field in fields(SamplingParams) if "range" in field.metadata
}
INT64 = {"ge": -(2**63), "le": 2**63 - 1}


def _number(name: str, **more: Any) -> Any:
    """A pydantic field with the range of the sampling parameter `name`."""
    limits = RANGES[name]
    low = {} if limits.low == float("-inf") else {"gt" if limits.above_low else "ge": limits.low}
    high = {} if limits.high == float("inf") else {"le": limits.high}
    return Field(**{"default": None, "allow_inf_nan": False if limits.kind is float else None, **low, **high, **more})


TokenId = Annotated[int, Field(ge=0, le=2**31 - 1)]
TokenIds = Annotated[list[TokenId], Field(min_length=1, fail_fast=True)]
Text = str
Prompt = (
    Text
    | TokenIds
    | Annotated[list[Text], Field(min_length=1, fail_fast=True)]
    | Annotated[list[TokenIds], Field(min_length=1, fail_fast=True)]
)
StopString = Annotated[str, StringConstraints(min_length=1, max_length=1000)]
BiasKey = Annotated[str, StringConstraints(pattern=r"^[0-9]{1,9}$")]
Bias = dict[BiasKey, Annotated[float, Field(ge=-100, le=100, allow_inf_nan=False)]]


class StreamOptions(BaseModel):
    """How a stream is told."""

    model_config = ConfigDict(strict=True)

    include_usage: bool | None = Field(None, description="one more chunk, the last, with the numbers of tokens")


class Sampling(BaseModel):
    """What completions and chats have in common."""

    model_config = ConfigDict(strict=True, extra="allow")

    model: str = Field(description="the name that /v1/models gives")
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    n: int | None = _number("n", description="samples of each prompt")
    max_tokens: int | None = _number("max_tokens", le=2**31 - 1)
    min_tokens: int | None = _number("min_tokens", le=2**31 - 1)
    temperature: float | None = _number("temperature", le=100, description="0 is greedy; without it 1, as by OpenAI")
    top_p: float | None = _number("top_p")
    top_k: int | None = _number("top_k", ge=-1, le=2**31 - 1, description="0 or -1: all")
    min_p: float | None = _number("min_p")
    repetition_penalty: float | None = _number("repetition_penalty")
    presence_penalty: float | None = _number("presence_penalty")
    frequency_penalty: float | None = _number("frequency_penalty")
    logit_bias: Annotated[Bias, MaxLen(1024)] | None = Field(None, description="token id -> what its logit gains")
    seed: int | None = _number("seed", **INT64)
    stop: StopString | Annotated[list[StopString], MaxLen(64)] | None = None
    stop_token_ids: Annotated[list[TokenId], MaxLen(64)] | None = None
    ignore_eos: bool | None = None
    user: str | None = Field(None, description="ignored")

    OWN: ClassVar[tuple[str, ...]] = (
        *("n", "min_tokens", "temperature", "top_p", "min_p", "repetition_penalty", "presence_penalty"),
        *("frequency_penalty", "seed", "stop", "stop_token_ids", "ignore_eos"),
    )

    def params(self, **more: Any) -> SamplingParams:
        """As the engine takes them. Raises `RequestError` where fields contradict each other."""
        given = {name: getattr(self, name) for name in self.OWN if getattr(self, name) is not None}
        bias = {int(token): value for token, value in (self.logit_bias or {}).items()}
        top_k = max(0, self.top_k or 0)
        return SamplingParams(**{"temperature": 1.0, **given, "top_k": top_k, "logit_bias": bias, **more})

    @property
    def include_usage(self) -> bool:
        """Whether the stream ends with the numbers of tokens."""
        return bool(self.stream_options and self.stream_options.include_usage)

    def refuse_unsupported(self, harmless: dict[str, tuple[Any, ...]]) -> None:
        """Raise `ApiError` for a field that asks for something that this server does not do."""
        for name, values in harmless.items():
            given = (self.model_extra or {}).get(name)
            if given is not None and given not in values:
                raise unsupported(name, "this server does not do that: leave it out")
        if self.stream_options is not None and not self.stream:
            raise unsupported("stream_options", "these are for stream = true")


class CompletionRequest(Sampling):
    """The body of /v1/completions."""

    prompt: Prompt = Field(description="a text, token ids, or a list of either")
    echo: bool | None = Field(None, description="whether the answer begins with the prompt")
    logprobs: int | None = Field(None, ge=0, le=1000, description="alternatives per token")

    REFUSED: ClassVar[dict[str, tuple[Any, ...]]] = {"suffix": ("",), "best_of": (1,), "use_beam_search": (False,)}

    @property
    def prompts(self) -> list[str] | list[list[int]]:
        """One prompt or several, as a list."""
        if isinstance(self.prompt, str):
            return [self.prompt]
        return [self.prompt] if isinstance(self.prompt[0], int) else self.prompt

    @property
    def sampling(self) -> SamplingParams:
        """16 tokens, unless told otherwise, as by OpenAI. Raises `RequestError`."""
        scored = self.logprobs if self.echo else None
        wanted = 16 if self.max_tokens is None else self.max_tokens
        return self.params(max_tokens=wanted, logprobs=self.logprobs, prompt_logprobs=scored)


class TextPart(BaseModel):
    """A part of a message."""

    model_config = ConfigDict(strict=True)

    type: Literal["text"] = Field(description="pictures and sound are not taken")
    text: str


class Message(BaseModel):
    """One turn of a chat."""

    model_config = ConfigDict(strict=True)

    role: Literal["system", "developer", "user", "assistant"]
    content: str | Annotated[list[TextPart], Field(fail_fast=True)]

    def plain(self) -> dict[str, str]:
        """As chat templates take it."""
        text = self.content if isinstance(self.content, str) else "".join(part.text for part in self.content)
        return {"role": "system" if self.role == "developer" else self.role, "content": text}


class ChatRequest(Sampling):
    """The body of /v1/chat/completions."""

    messages: Annotated[list[Message], Field(min_length=1, fail_fast=True)]
    max_completion_tokens: int | None = _number("max_tokens", le=2**31 - 1)
    logprobs: bool | None = None
    top_logprobs: int | None = Field(None, ge=0, le=1000, description="alternatives per token")

    REFUSED: ClassVar[dict[str, tuple[Any, ...]]] = {
        "tools": ([],),
        "tool_choice": ("none", "auto"),
        "functions": ([],),
        "function_call": ("none", "auto"),
        "response_format": ({"type": "text"},),
        "modalities": (["text"],),
        "audio": (),
        "prediction": (),
        "web_search_options": (),
        "reasoning_effort": ("none",),
    }

    @property
    def prompts(self) -> list[list[dict[str, str]]]:
        """The one chat, as a list of prompts."""
        return [[message.plain() for message in self.messages]]

    @property
    def sampling(self) -> SamplingParams:
        """As many tokens as the context has room for, unless told otherwise. Raises `RequestError`."""
        wanted = self.max_tokens if self.max_completion_tokens is None else self.max_completion_tokens
        return self.params(max_tokens=wanted, logprobs=(self.top_logprobs or 0) if self.logprobs else None)


class TokenizeRequest(BaseModel):
    """The body of /tokenize: a text, or the messages of a chat."""

    model_config = ConfigDict(strict=True)

    model: str | None = None
    prompt: str | None = None
    messages: Annotated[list[Message], Field(min_length=1, fail_fast=True)] | None = None
    add_special_tokens: bool | None = None
    add_generation_prompt: bool | None = None


class DetokenizeRequest(BaseModel):
    """The body of /detokenize."""

    model_config = ConfigDict(strict=True)

    model: str | None = None
    tokens: Annotated[list[TokenId], Field(fail_fast=True)]


class ErrorFacts(BaseModel):
    """What went wrong."""

    message: str
    type: str
    param: str | None = Field(description="the field that is to blame")
    code: str | None


class ErrorReply(BaseModel):
    """Every answer that is not of status 200."""

    error: ErrorFacts
