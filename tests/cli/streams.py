"""Streams that a person sits at."""

import io


class Screen(io.StringIO):
    """Output that takes itself for a terminal and keeps what it shows."""

    def isatty(self):
        return True

    def reconfigure(self, **settings):
        pass


class Keyboard(io.StringIO):
    """Input where nobody types: reading it would wait for ever."""

    def isatty(self):
        return True

    @property
    def buffer(self):
        raise AssertionError("the command waits for somebody to type")
