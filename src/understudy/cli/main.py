"""The ``understudy`` command: registers the commands and turns errors into one sentence and an exit code."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from io import TextIOWrapper
from typing import Annotated, NoReturn

import typer

from understudy.cli import (
    annotate,
    audit,
    compare,
    curve,
    data,
    demo,
    evaluate,
    federated,
    inspect,
    keys,
    label,
    methods,
    plan,
    release,
    report,
    sample,
    train,
    verify,
)
from understudy.errors import UnderstudyError

INTERRUPTED = 130
BAD_INPUT = 2

app = typer.Typer(
    name="understudy",
    help="Turn a sensitive image data set into a generator that may be released in its place.",
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
for _module in (
    demo,
    train,
    release,
    sample,
    evaluate,
    compare,
    curve,
    inspect,
    annotate,
    label,
    report,
    plan,
    verify,
    methods,
):
    app.command(_module.NAME)(_module.command)
app.add_typer(audit.app, name="audit")
app.add_typer(data.app, name="data")
app.add_typer(federated.app, name="federated")
app.add_typer(keys.app, name="keys")


def _print_version(wanted: bool) -> None:
    if wanted:
        from importlib.metadata import version

        typer.echo(f"understudy {version('understudy')}")
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    pass


def main(arguments: Sequence[str] | None = None) -> NoReturn:
    """Run the command line and exit: 0 done, 1 a check failed, 2 bad input, 3 over budget, 130 interrupted."""
    if isinstance(sys.stdout, TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")  # no terminal shows every letter that a file may hold
    sys.exit(run(list(sys.argv[1:] if arguments is None else arguments)))


def run(arguments: list[str]) -> int:
    """The exit code of one command; every expected failure is one sentence on stderr."""
    usage_error: type[Exception] = typer.BadParameter.__mro__[1]  # where it lives differs between versions of typer
    try:
        result = app(args=arguments or ["--help"], prog_name="understudy", standalone_mode=False)
        code = result if isinstance(result, int) else 0
        return code if code != INTERRUPTED else _fail("interrupted", INTERRUPTED)
    except UnderstudyError as error:
        return _fail(str(error), error.exit_code)
    except usage_error as error:
        return _explain_usage(error)
    except (KeyboardInterrupt, typer.Abort):
        return _fail("interrupted", INTERRUPTED)
    except OSError as error:
        place = f"{error.filename}: " if error.filename else ""
        return _fail(f"{place}{error.strerror or error}; check the path, its permissions and the free space", BAD_INPUT)


def _explain_usage(error: Exception) -> int:
    """A usage error names the mistake and where the help is; a group called without a command shows its help."""
    context = getattr(error, "ctx", None)
    if type(error).__name__ == "NoArgsIsHelpError" and context is not None:
        typer.echo(context.get_help(), err=True)
        return BAD_INPUT
    message = " ".join(str(getattr(error, "format_message", error.__str__)()).split()).rstrip(".")
    path = getattr(context, "command_path", "understudy")
    return _fail(f"{message}; see '{path} --help'", BAD_INPUT)


def _fail(sentence: str, code: int) -> int:
    print(f"understudy: {sentence}", file=sys.stderr)
    return code
