"""Job: what a rank's or a replica's process is to do, as one line that it reads."""

import base64
import pickle
from dataclasses import dataclass
from typing import Any

from minfer.core.entry import can_be_found, place_of
from minfer.core.errors import OptionsError


@dataclass(frozen=True)
class Job:
    """What a rank is to do."""

    engine: tuple[str, str, str]  # module, its file, class
    model: str
    options: dict[str, Any]
    parts: int
    stages: int
    port: int  # where ranks meet
    timeout: float
    rank: int = 0
    links: tuple[int, ...] = ()  # files that are a replica's ends of its connections

    @classmethod
    def of(cls, engine_cls: type, model: str, options: dict[str, Any], checked: Any, port: int = 0) -> "Job":
        """The job of ranks, or of a replica. They run `engine_cls`, or a base of it that other processes can find."""
        base = next((c for c in engine_cls.__mro__ if can_be_found(c)), None)
        if base is None:
            raise OptionsError(f"{engine_cls.__name__} is in no .py file, in which the other ranks could find it")
        kept = {"device": checked.device, **{name: value for name, value in options.items() if name != "ranks"}}
        parts, stages = checked.tensor_parallel, checked.pipeline_parallel
        return cls(place_of(base), str(model), kept, parts, stages, port, checked.rank_timeout)

    def packed(self) -> bytes:
        """One line. Raises `OptionsError` for an option that is a live object."""
        try:
            return base64.b64encode(pickle.dumps(self)) + b"\n"
        except (pickle.PicklingError, TypeError, AttributeError) as error:
            raise OptionsError(f"an option cannot be given to another process: {error}") from error

    @staticmethod
    def unpacked(line: bytes) -> "Job":
        """The job of a line."""
        job: Job = pickle.loads(base64.b64decode(line))
        return job
