"""The command line: finds the command, and turns every error into one line and an exit code.

0: done. 1: a fault of difformer. 2: an error that the user can fix. 130: interrupted, run kept;
143: the same by SIGTERM.
"""

from __future__ import annotations

import errno
import sys
import warnings
from collections.abc import Callable, Sequence
from functools import wraps
from importlib import import_module
from inspect import Parameter, signature
from typing import Annotated, Any, NoReturn

import typer
from typer.core import TyperCommand, TyperGroup
from typer.main import get_command

import difformer
from difformer.app import COMMANDS, FILES
from difformer.extensions import added
from difformer.train.interrupts import exit_code, listen_to_sigterm


class LazyGroup(TyperGroup):
    """Imports a command when it is called: `--help` must not wait for torch."""

    def list_commands(self, ctx: Any) -> list[str]:
        return [*added("commands"), *COMMANDS]

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        if cmd_name not in self.list_commands(ctx):
            return None
        return load_command(cmd_name)

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt as error:  # typer would exit without a message
            raise typer.Abort from error

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        others = ((name, summary) for name, (_, summary) in added("commands").items())
        rows = [*others, *COMMANDS.items()]
        with formatter.section("Commands"):
            formatter.write_dl(rows)


class HeadedCommand(TyperCommand):
    """A command whose --help has a heading for each group of options."""

    def format_options(self, ctx: Any, formatter: Any) -> None:
        groups: dict[str, list[Any]] = {}
        for parameter in self.get_params(ctx):
            record = parameter.get_help_record(ctx)
            if record is not None:
                argument = parameter.param_type_name == "argument"
                panel = getattr(parameter, "rich_help_panel", None) or "Options"
                groups.setdefault("Arguments" if argument else panel, []).append(record)
        for heading, records in groups.items():
            with formatter.section(heading):
                formatter.write_dl(records)


app = typer.Typer(
    cls=LazyGroup,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
    epilog="Start here: difformer demo. Each command has its own --help, with an example.",
)


def print_version(wanted: bool) -> None:
    """Print the version for --version, which needs no command."""
    if wanted:
        typer.echo(difformer.__version__)
        raise typer.Exit


@app.callback()
def difformer_command(
    version: Annotated[
        bool,
        typer.Option(
            "--version", help="Print the version and exit.", callback=print_version, is_eager=True
        ),
    ] = False,
) -> None:
    """Transformers derived from energy-constrained diffusion, for data with or without a graph."""


def load_command(name: str) -> Any:
    """The command of that name, from its file in `commands`."""
    own = f"difformer.app.commands.{FILES.get(name, name)}"
    module = import_module(own if name in COMMANDS else added("commands")[name][0])
    group = getattr(module, name if name in FILES else "command")
    if not isinstance(group, typer.Typer):
        function, group = group, typer.Typer(add_completion=False, rich_markup_mode=None)
        group.command(name, cls=HeadedCommand)(with_debug(function))
    command = get_command(group)
    command.name = name
    return command


def with_debug(function: Callable[..., None]) -> Callable[..., None]:
    """Show --debug in the help of a command; `main` acts on it, wherever it is given."""

    @wraps(function)
    def command(*, debug: bool = False, **values: Any) -> None:
        function(**values)

    info = typer.Option("--debug", help="Show the whole traceback of an error.")
    added = Parameter(
        "debug", Parameter.KEYWORD_ONLY, default=False, annotation=Annotated[bool, info]
    )
    found = signature(function, eval_str=True)
    command.__signature__ = found.replace(  # type: ignore[attr-defined]
        parameters=[*found.parameters.values(), added]
    )
    return command


def main(arguments: Sequence[str] | None = None) -> NoReturn:
    """Run the command line and exit; with --debug anywhere, an error shows its traceback."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    debug = "--debug" in words
    words = [word for word in words if word != "--debug"] or ["--help"]
    if words[0] != "serve":  # which has nothing to keep, and ends as services do
        listen_to_sigterm()
    warnings.formatwarning = lambda message, *_, **__: f"warning: {message}\n"
    try:
        code = app(words, prog_name="difformer", standalone_mode=False)
    except BaseException as error:
        code = explain(error)
        if debug and not isinstance(error, SystemExit):
            raise
    sys.exit(code if isinstance(code, int) else 0)


def explain(error: BaseException) -> int:
    """Print one line on stderr that says what went wrong; return the exit code."""
    from difformer.errors import DifformerError

    if isinstance(error, SystemExit):
        return error.code if isinstance(error.code, int) else int(error.code is not None)
    if isinstance(error, KeyboardInterrupt | typer.Abort):
        print("interrupted", file=sys.stderr)
        return exit_code()
    if hasattr(error, "format_message"):  # an error of the parser
        where = getattr(error, "ctx", None)
        hint = f" (see {where.command_path} --help)" if where is not None else ""
        if where is not None and type(error).__name__ == "NoSuchOption":
            hint = _by_set(error, where) + hint
        return _say(f"{error.format_message()}{hint}", 2)  # type: ignore[attr-defined]
    if isinstance(error, DifformerError | ValueError):
        return _say(str(error), 2)
    if isinstance(error, BrokenPipeError):  # such as `| head`
        return 0
    if isinstance(error, OSError):
        name = f"{error.filename}: " if error.filename else ""
        hint = ": make room, or fix the permissions" if error.errno in _OUTSIDE else ""
        return _say(f"{name}{error.strerror or error}{hint}", 2)
    if isinstance(error, MemoryError) or type(error).__name__ == "OutOfMemoryError":
        return _say(
            "out of memory: use fewer rows, a smaller --hidden-channels, or --batch-size", 2
        )
    return _say(
        f"{type(error).__name__}: {error}; this is a fault of difformer: run it again with "
        "--debug and report what it prints",
        1,
    )


def _by_set(error: Any, where: Any) -> str:
    """The hint that an unknown option may belong to --set, if the command has it."""
    if not any("--set" in given.opts for given in where.command.params):
        return ""
    name = str(error.option_name).lstrip("-").replace("-", "_")
    return f"; an option of --series or of another system is given as --set {name}=VALUE"


_OUTSIDE = (errno.ENOSPC, errno.EDQUOT, errno.EACCES, errno.EPERM, errno.EROFS, errno.EFBIG)


LONGEST = 2000  # characters of an error: it may quote a long cell


def _say(message: str, code: int) -> int:
    line = " ".join(message.split())
    line = line if len(line) <= LONGEST else f"{line[:LONGEST]} ..."
    print(f"error: {line}", file=sys.stderr)
    return code
