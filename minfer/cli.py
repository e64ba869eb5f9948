"""The command `minfer`: collects the commands, and turns what goes wrong into one line and an exit code.

A command `NAME` is the function `NAME` of `minfer/commands/NAME.py` and a line in `SUMMARIES`. Its module, and with it
torch where it needs torch, is imported when the command is run, so `minfer --help` is there at once.
"""

import errno
import importlib
import os
import sys
import warnings
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

import minfer
from minfer.core.errors import MinferError, MinferWarning

SUMMARIES = {
    "generate": "Write text, streamed as it comes; or answer a file of prompts.",
    "serve": "Serve a model to clients of OpenAI's API, with a live view.",
    "top": "Show what a server does, live.",
    "pull": "Fetch a model into the cache.",
    "models": "List the models that are here.",
    "memory": "Show what a model needs of a card's memory, and what fits.",
    "quantize": "Write a model in fewer bits.",
    "quality": "Show what quantisation costs: perplexity, divergence, greedy match.",
    "options": "Show the options of a phase and the sampling parameters.",
    "comm": "Measure how fast ranks talk to each other, and its share of a step.",
    "profile": "Show where the time and the memory of some requests go.",
    "start": "Begin a phase of the course: copy its starter to work/.",
    "check": "Grade your engine of a phase.",
    "hint": "Show a hint for a task.",
    "explain": "Explain a mistake by its code.",
    "status": "Show how far you are in the course.",
    "reset": "Begin a phase again; your file is kept.",
    "replay": "Run one failure again from its receipt.",
    "grade": "Grade many submissions, each confined in processes of its own.",
    "export": "Write a students' repository, without the answers.",
    "bench": "Measure phases beside each other and beside their peers.",
    "predict": "Predict the time of steps by a model of their cost, beside published figures.",
    "calibrate": "Measure this machine: what predict and why reckon with.",
    "why": "Say why two rows of a benchmark differ: a waterfall in words, or drawn.",
    "diff": "Show what a phase changes of the one before, method by method.",
    "flatten": "Write a phase as one file without inheritance.",
    "hooks": "Show which phase overrides which hook.",
    "compare": "Run the same requests on two phases, side by side.",
    "course": "Make the starters and diff pages of the course anew.",
}

COMMANDS = Path(__file__).with_name("commands")
SUMMARIES = {name: summary for name, summary in SUMMARIES.items() if (COMMANDS / f"{name}.py").is_file()}
"""A students' repository lacks the commands that need later phases."""

UsageError: Any = typer.BadParameter.__base__  # of everything that is wrong with a command line
SUCCESS, CLOSED, BAD_INPUT, INTERRUPTED = 0, 1, 2, 130
REFUSALS = (
    *(errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EACCES, errno.EPERM),
    *(errno.EISDIR, errno.ENOTDIR, errno.ENAMETOOLONG),
)
"""Of a file, by the system: no fault of minfer's."""


class Commands(TyperGroup):
    """Knows every command by its summary, and builds the one that is run."""

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """The name, the command with its flags, and the arguments left for it."""
        name, _, rest = super().resolve_command(ctx, args)
        assert name is not None
        return name, _build(name), rest


def _build(name: str) -> Any:
    made = getattr(importlib.import_module(f"minfer.commands.{name}"), name)
    if isinstance(made, typer.Typer):  # a command with commands of its own
        return typer.main.get_command(made)
    alone = typer.Typer(add_completion=False)
    alone.command(name)(made)
    return typer.main.get_command(alone)


app = typer.Typer(
    cls=Commands,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
for _name, _summary in SUMMARIES.items():
    app.command(_name, help=_summary)(lambda: None)


def _show_version(asked: bool) -> None:
    if asked:
        print(f"minfer {minfer.__version__}")
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Show the version.")
    ] = False,
) -> None:
    """LLM inference in pure PyTorch, one optimisation at a time."""


def main(args: list[str] | None = None) -> int:
    """Run the command line `args` (default: the process's own) and return its exit code.

    0: done; 1: standard output was closed; 2: bad input, said in one line on standard error; 130: Ctrl-C.
    Anything else is a bug in minfer and raises.
    """
    _prepare_streams()
    given = sys.argv[1:] if args is None else args
    with warnings.catch_warnings():
        warnings.showwarning = _show_warning
        try:
            code = app(given or ["--help"], standalone_mode=False, prog_name="minfer")
            sys.stdout.flush()
        except UsageError as error:
            return _fail(f"{error.format_message()} (see: {_command_path(error)} --help)")
        except MinferError as error:
            return _fail(str(error))
        except (KeyboardInterrupt, typer.Abort):
            code = INTERRUPTED
        except BrokenPipeError:
            _silence_stdout()
            return CLOSED
        except OSError as error:
            if error.filename is not None and error.errno in REFUSALS:
                return _fail(f"{error.filename2 or error.filename}: {error.strerror}")
            if error.filename is not None:
                raise
            _silence_stdout()
            return _fail(f"cannot write the output: {error.strerror}")
    if code == INTERRUPTED:
        print(file=sys.stderr)  # the shell's prompt begins a line of its own
    return code or SUCCESS


def _silence_stdout() -> None:
    """The interpreter flushes it once more at exit."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _prepare_streams() -> None:
    """A stream that is closed swallows text; one that cannot show a character shows `?` instead of failing."""
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if stream is None:
            setattr(sys, name, open(os.devnull, "w"))  # noqa: SIM115 (lives as long as the process)
        else:
            stream.reconfigure(errors="replace")


def _show_warning(message: Warning | str, category: type[Warning], *place: Any, **more: Any) -> None:
    if issubclass(category, MinferWarning):
        print(f"minfer: warning: {_one_line(str(message))}", file=sys.stderr)
    else:
        sys.stderr.write(warnings.formatwarning(message, category, *place[:2]))


def _fail(message: str) -> int:
    sys.stdout.flush()
    print(f"minfer: error: {_one_line(message)}", file=sys.stderr)
    return BAD_INPUT


def _one_line(message: str) -> str:
    return " ".join(line.strip() for line in message.splitlines())


def _command_path(error: Any) -> str:
    return error.ctx.command_path if error.ctx else "minfer"
