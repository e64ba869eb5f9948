"""`--slo`: what the service promises, by name or by numbers."""

from minfer.core.errors import OptionsError
from minfer.phase11.limits import PRESETS, Limits

NAMES = {"ttft": "ttft", "tpot": "tpot", "e2el": "e2e", "e2e": "e2e"}


def parse_slo(text: str) -> Limits:
    """`chat`, or milliseconds as of vLLM's --goodput: `ttft:500,tpot:50,e2el:5000`. Raises `OptionsError`."""
    if text in PRESETS:
        return PRESETS[text]
    given: dict[str, float] = {}
    for part in text.replace(",", " ").split():
        name, _, value = part.partition(":")
        try:
            milliseconds = float(value)
        except ValueError:
            milliseconds = -1.0
        if name not in NAMES or not 0 < milliseconds < float("inf"):
            raise OptionsError(
                f"--slo {text!r}: give one of {', '.join(PRESETS)}, or such as ttft:500,tpot:50,e2el:5000"
            )
        given[NAMES[name]] = milliseconds / 1000
    if not given:
        raise OptionsError(f"--slo {text!r}: give one of {', '.join(PRESETS)}, or such as ttft:500,tpot:50")
    return Limits(**given)  # type: ignore[arg-type]
