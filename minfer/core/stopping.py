"""StopChecker: finds stop strings in text that arrives in pieces, and never lets half of one out."""

from collections.abc import Sequence


class StopChecker:
    """Watches one sequence's text for its stop strings.

    The match that is complete first ends the text, whatever pieces the text came in; of those complete at the same
    character the longest wins, so the most is cut. What may yet become a stop string is held back, and nothing more:
    `_held` is the longest end of the text so far that begins a stop string.

    Each stop string is followed by a Knuth–Morris–Pratt automaton, whose state is how many of its characters the
    text now ends with: a push costs time in proportion to its own length, whatever came before.
    """

    def __init__(self, stop: Sequence[str]) -> None:
        self._stop = tuple(dict.fromkeys(stop))
        self._borders = [_borders(pattern) for pattern in self._stop]
        self._states = [0] * len(self._stop)
        self._held = ""

    def push(self, text: str, may_stop: bool = True) -> tuple[str, str | None]:
        """Take the next piece: returns (text that may be shown now, the stop string that ended it or None).

        With `may_stop` False (before `min_tokens`) a match that ends in this piece counts as plain text. After a
        match the checker is done: what follows the match in `text` is dropped, and nothing is held.
        """
        if not self._stop:
            return text, None
        text, start = self._held + text, len(self._held)
        for end in range(start, len(text)):
            complete = self._advance(text[end])
            if complete and may_stop:
                matched = max(complete, key=len)
                self._held = ""
                return text[: end + 1 - len(matched)], matched
        shown = len(text) - max(self._states)
        self._held = text[shown:]
        return text[:shown], None

    def flush(self) -> str:
        """The text held back, when no more will come: it did not become a stop string."""
        held, self._held = self._held, ""
        return held

    def _advance(self, char: str) -> list[str]:
        """Move every automaton by one character; returns the stop strings that are now complete."""
        complete = []
        for i, (pattern, borders) in enumerate(zip(self._stop, self._borders, strict=True)):
            state = self._states[i]
            while state and pattern[state] != char:
                state = borders[state - 1]
            state += pattern[state] == char
            if state == len(pattern):
                complete.append(pattern)
                state = borders[-1]  # an ignored match may still begin the next one
            self._states[i] = state
        return complete


def _borders(pattern: str) -> list[int]:
    """For each prefix of `pattern`, the length of its longest proper prefix that is also its suffix."""
    borders = [0] * len(pattern)
    state = 0
    for i in range(1, len(pattern)):
        while state and pattern[state] != pattern[i]:
            state = borders[state - 1]
        state += pattern[state] == pattern[i]
        borders[i] = state
    return borders
