"""The errors a user may see: each carries one clear sentence and the exit code of the command line."""

from __future__ import annotations

_LONGEST = 1000  # characters of a sentence; what it quotes may come from a hostile file


class UnderstudyError(Exception):
    """Base of all errors raised on purpose; the command line prints its sentence and no traceback."""

    exit_code = 2

    def __str__(self) -> str:
        """The sentence in one printable line, whatever it quotes."""
        return one_line(super().__str__())


def one_line(text: str) -> str:
    """A text with line breaks and control characters escaped, and its middle left out where it is very long."""
    if len(text) > _LONGEST:
        text = f"{text[: _LONGEST - 300]} [...] {text[-250:]}"
    return "".join(letter if letter.isprintable() else letter.encode("unicode_escape").decode() for letter in text)


class InputError(UnderstudyError):
    """Bad input or usage: names the thing, the value and the way out."""

    exit_code = 2


class EmptyDataError(InputError):
    """A source that can be read and holds no image; a client of a federation takes part all the same."""


class CheckError(UnderstudyError):
    """A check that was asked for failed (for example a release that does not verify)."""

    exit_code = 1


class BudgetError(UnderstudyError):
    """The privacy budget does not allow what was asked; nothing was spent."""

    exit_code = 3


class AbortedRun(UnderstudyError):
    """A run that broke down: it releases nothing, now or later, and counts as a run on its data."""

    exit_code = 1


class InterruptedRun(UnderstudyError):
    """The run was interrupted and can be resumed; its spending is on record."""

    exit_code = 130
