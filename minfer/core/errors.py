"""The errors that minfer raises on bad input.

Every message says what was wrong, with the numbers, and what to do next. The command line prints a `MinferError`
as one line and exits with code 2; anything else is a bug in minfer and keeps its traceback.
"""

import difflib
from collections.abc import Iterable


class MinferError(ValueError):
    """Base of all errors that a user can cause and mend."""


class ConfigError(MinferError):
    """A `config.json` that minfer cannot run faithfully."""


class CheckpointError(MinferError):
    """Weights that are absent, damaged, or of another model."""


class TokenizerError(MinferError):
    """A tokenizer file that is absent or damaged, a template that fails, or ids outside the vocabulary."""


class RequestError(MinferError):
    """A prompt or sampling parameter that cannot be served."""


class OptionsError(MinferError):
    """An engine option that does not exist or is out of range."""


class DeviceError(MinferError):
    """A device or dtype that this machine cannot provide."""


class MissingExtra(MinferError, ImportError):
    """An optional package is needed now and is not installed; the message names the pip command."""


class MinferWarning(UserWarning):
    """Something harmless today that a user should know: an ignored key, a fallback that was taken."""


def did_you_mean(name: str, valid: Iterable[str], most: int = 3) -> str:
    """The hint " (did you mean A or B?)" of up to `most` valid names that are spelt alike, or nothing."""
    close = difflib.get_close_matches(name, sorted(valid), n=most, cutoff=0.5)
    return f" (did you mean {' or '.join(close)}?)" if close else ""
