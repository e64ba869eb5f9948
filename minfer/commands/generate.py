"""`minfer generate`: one prompt, streamed; or a file of prompts, answered as JSON lines."""

import os
import sys
from contextlib import closing
from pathlib import Path
from typing import Annotated, Any

import typer

from minfer import NEWEST_PHASE, SERVING_PHASE
from minfer.commands.batch import run_batch
from minfer.commands.flags import flag_name, given_values, with_flags
from minfer.commands.phases import engine_class, first_phase, option_fields, options_class
from minfer.commands.prompt_file import decode, read_requests
from minfer.commands.summary import batch_summary, single_summary
from minfer.core.errors import OptionsError, RequestError
from minfer.core.hub import EMBEDDED
from minfer.core.params import SamplingParams
from minfer.plots.recording import Recording
from minfer.plots.run_figure import check_format, draw
from minfer.plots.run_text import block_map, timeline

DEFAULT_PROMPT = "KING HENRY:\nOnce more"
STDIN = "-"


def _since(option: str) -> str:
    known = option in option_fields(NEWEST_PHASE)
    return f" (from phase {first_phase(option)} on)" if known and first_phase(option) > 1 else ""


@with_flags({"Engine": options_class(NEWEST_PHASE), "Sampling": SamplingParams}, note=_since)
def generate(
    prompt: Annotated[
        str | None, typer.Argument(help="The text to continue; - or nothing: read it from standard input.")
    ] = None,
    model: Annotated[
        str, typer.Option("--model", "-m", help="A pulled model's name, a folder, or random:<shape>.")
    ] = EMBEDDED,
    phase: Annotated[
        int | None,
        typer.Option(
            help=f"Whose engine runs it, 1 to {NEWEST_PHASE}; default: {SERVING_PHASE}, or the first that has all "
            "the options given.",
        ),
    ] = None,
    chat: Annotated[bool, typer.Option("--chat", help="The prompt is what the user of a chat says.")] = False,
    system: Annotated[str | None, typer.Option(help="What the system says first in a chat.")] = None,
    file: Annotated[
        Path | None,
        typer.Option(
            "--file",
            "-f",
            help="Answer all prompts of a file: one a line, or JSON lines (.jsonl) with prompt, messages or prompt_ids "
            "and sampling parameters of their own.",
        ),
    ] = None,
    out: Annotated[Path | None, typer.Option("--out", "-o", help="Write the file's answers here.")] = None,
    picture: Annotated[
        Path | None,
        typer.Option(help="Draw the run of the file: rows and blocks against steps; ends in .png, .svg or .pdf."),
    ] = None,
    show_run: Annotated[bool, typer.Option("--show-run", help="The same as text, on standard error.")] = False,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="No progress bar and no summary.")] = False,
    **flags: Any,
) -> None:
    """Write text, streamed as it comes; or answer a file of prompts with a line of JSON each."""
    _check_together(prompt, chat, system, file, out)
    recording = _recording(picture, show_run, file)
    options = given_values(options_class(NEWEST_PHASE), flags)
    phase = _chosen(phase, options)
    given = given_values(SamplingParams, flags)
    params = SamplingParams(**given)
    messages = [{"role": "system", "content": system}] if system is not None else []

    def to_prompt(text: str) -> Any:
        return [*messages, {"role": "user", "content": text}] if chat else text

    requests = read_requests(file, given, to_prompt) if file else []
    text = None if file else _prompt_text(prompt, model)
    engine = engine_class(phase).load(model, **options)
    if text is None:
        sequences = run_batch(engine, requests, out, quiet, recording)
        _show_recording(recording, picture, show_run, f"{len(sequences)} requests of {file}, phase {phase}")
        summary = batch_summary(engine, model, phase, sequences)
    else:
        sequences = engine.sequences([to_prompt(text)], params)
        _show(engine, sequences)
        summary = single_summary(engine, model, phase, sequences)
    if not quiet:
        print(summary, file=sys.stderr)
    _refuse_failed(sequences)


def _check_together(prompt: str | None, chat: bool, system: str | None, file: Path | None, out: Path | None) -> None:
    if file and prompt is not None:
        raise OptionsError("a prompt and --file were given: give one of them")
    if out and not file:
        raise OptionsError("--out is for the answers to --file: one prompt's text goes to standard output")
    if out and not out.absolute().parent.is_dir():
        raise OptionsError(f"--out {out}: there is no folder {out.parent}")
    if system is not None and not chat:
        raise OptionsError("--system is the first message of a chat: add --chat")


def _recording(picture: Path | None, show_run: bool, file: Path | None) -> Recording | None:
    if not picture and not show_run:
        return None
    if not file:
        raise OptionsError("--picture and --show-run draw how a file of prompts was run: give --file")
    if picture:
        check_format(picture)
    return Recording()


def _show_recording(recording: Recording | None, picture: Path | None, show_run: bool, title: str) -> None:
    if recording and show_run:
        print(timeline(recording), block_map(recording), sep="\n", file=sys.stderr)
    if recording and picture:
        draw(recording, picture, title)


def _chosen(phase: int | None, options: dict[str, Any]) -> int:
    """The phase asked for, or the default. Raises `OptionsError` for an engine option that it does not have."""
    if phase is None:
        return max([SERVING_PHASE, *map(first_phase, options)])
    valid = option_fields(phase)
    for name in options:
        if name not in valid:
            flag = flag_name(option_fields(NEWEST_PHASE)[name])
            raise OptionsError(
                f"phase {phase} has no {flag}: it comes with phase {first_phase(name)}; "
                f"phase {phase} has {', '.join(map(flag_name, valid.values()))}"
            )
    return phase


def _prompt_text(prompt: str | None, model: str) -> str:
    """What to continue: the argument, else standard input, else something for the embedded model."""
    if prompt is not None and prompt != STDIN:
        return decode(os.fsencode(prompt), "the prompt")
    text = None if prompt is None and _stdin_is_silent() else _read_stdin()
    if text or prompt == STDIN:
        return text or ""
    if model == EMBEDDED:
        return DEFAULT_PROMPT
    raise RequestError(f'no prompt: give one, as in minfer generate -m {model} "Once upon a time"')


def _stdin_is_silent() -> bool:
    return sys.stdin is None or sys.stdin.isatty()


def _read_stdin() -> str:
    """Standard input, less the newline that ends its last line."""
    data = b"" if sys.stdin is None else sys.stdin.buffer.read()
    return decode(data, "standard input").removesuffix("\n").removesuffix("\r")


def _show(engine: Any, sequences: list[Any]) -> None:
    """Run the sequences; one alone is shown as it comes, several are shown one after the other."""
    several = len(sequences) > 1
    with closing(engine.run(sequences)) as steps:
        for _ in steps:
            if not several:
                _write(sequences[0].take_text())
    for number, sequence in enumerate(sequences, start=1):
        if several:
            _write(f"--- {number} of {len(sequences)} ---\n")
        _write(sequence.take_text())  # all of it, or what only the end made certain
        if not sequence.text.endswith("\n"):
            _write("\n")


def _write(text: str) -> None:
    if text:
        sys.stdout.write(text)
        sys.stdout.flush()


def _refuse_failed(sequences: list[Any]) -> None:
    errors = [sequence.completion().error for sequence in sequences if sequence.error is not None]
    if errors:
        raise RequestError(f"{len(errors)} of {len(sequences)} requests failed: {errors[0]}")
