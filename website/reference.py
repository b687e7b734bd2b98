"""The reference, made from the code: commands from the command line itself, Python from docstrings, methods from both.

Everything here returns Markdown and touches no file of the site; ``hooks.py`` puts it onto the site at every build, so
that it cannot be out of date.
"""

from __future__ import annotations

import inspect
import re
import sys
from collections.abc import Iterator, Sequence
from importlib import import_module
from pathlib import Path
from types import UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin

import click
import typer
from pydantic import BaseModel

import understudy
from understudy.cli.main import app
from understudy.methods.base import Method
from understudy.methods.registry import get_method

ROOT = Path(__file__).resolve().parent.parent
GROUPS = {
    "Data": ("load", "from_arrays", "from_hugging_face", "ImageDataset", "Domain"),
    "Training": ("train", "resume", "release_early", "TrainOptions", "Budget", "method_names"),
    "Accounts": ("open_account", "read_account", "Account"),
    "Releases": ("load_release", "Release", "verify", "Verification", "Certificate"),
    "Errors": ("UnderstudyError", "InputError", "BudgetError", "CheckError", "InterruptedRun", "AbortedRun"),
}
FURTHER = (  # what the guides import beside the public names
    "understudy.data.SourceOptions",
    "understudy.data.sources.DataOptions",
    "understudy.evaluate.evaluation.evaluate",
    "understudy.evaluate.evaluation.EvaluationConfig",
    "understudy.evaluate.releases.evaluate_release",
    "understudy.evaluate.releases.EvaluateOptions",
    "understudy.experiments.engine.compare",
    "understudy.experiments.engine.sweep",
    "understudy.experiments.engine.Entrant",
    "understudy.experiments.engine.ExperimentOptions",
    "understudy.inspection.inspection.inspect_samples",
)
_LONGEST_LINE = 100


# Commands


def commands_page() -> str:
    """Every command with its arguments and options, as ``--help`` has them."""
    command = typer.main.get_command(app)
    parts = [
        "# Commands\n",
        f"{command.help}\n\nThis page is made from the commands themselves; `understudy COMMAND --help` says the same. "
        "Exit codes: 0 done; 1 a check failed; 2 bad input or usage, said in one sentence; 3 the budget does not allow "
        "it; 130 interrupted and resumable.\n",
    ]
    for path, found in commands(command, "understudy"):
        parts.append(_command(path, found))
    return "\n".join(parts)


def commands(command: click.Command, path: str) -> Iterator[tuple[str, click.Command]]:
    """The commands below one, each with the words that call it; a group stands before its own."""
    if isinstance(command, click.Group):
        for name, found in command.commands.items():
            yield f"{path} {name}", found
            yield from commands(found, f"{path} {name}")


def _command(path: str, command: click.Command) -> str:
    title = f"## {path}\n\n{_prose(command.help or command.short_help or '')}\n"
    if isinstance(command, click.Group):
        return title
    context = click.Context(command, info_name=path)
    usage = " ".join(command.collect_usage_pieces(context))
    rows = [(_parameter(each), _meaning(each, context)) for each in command.params if not getattr(each, "hidden", 0)]
    return f"{title}\n```sh\n{path} {usage}\n```\n\n" + _table(("", ""), rows)


def _parameter(parameter: click.Parameter) -> str:
    if isinstance(parameter, click.Argument):
        return f"`{parameter.human_readable_name.upper()}`"
    names = ", ".join(f"`{name}`" for name in (*parameter.opts, *parameter.secondary_opts))
    value = "" if getattr(parameter, "is_flag", False) else f" {parameter.metavar or parameter.type.name.upper()}"
    return names + value


def _meaning(parameter: click.Parameter, context: click.Context) -> str:
    help_text = _prose(getattr(parameter, "help", None) or "")
    default = parameter.get_default(context, call=False)
    flag = getattr(parameter, "is_flag", False)
    if parameter.required:
        return f"{help_text} *Required.*"
    shown = default is not None and default is not False and default != () and not callable(default) and not flag
    return f"{help_text} Default: `{default}`." if shown else help_text


# Python


def python_page() -> str:
    """The public names of the package, and what else the guides import, from their docstrings."""
    groups = {title: [name for name in names if name in understudy.__all__] for title, names in GROUPS.items()}
    groups["Others"] = [name for name in understudy.__all__ if not any(name in names for names in groups.values())]
    parts = [
        "# Python\n",
        "The public names, after `import understudy as us`. This page is made from the docstrings.\n",
    ]
    for title, names in groups.items():
        parts += [f"## {title}\n"] if names else []
        parts += [_entry(f"us.{name}", getattr(understudy, name)) for name in names]
    parts.append("## Further entrances\n\nWhat the guides use beside the public names; it may move between versions.\n")
    for name in FURTHER:
        module, _, attribute = name.rpartition(".")
        parts.append(_entry(name, getattr(import_module(module), attribute)))
    return "\n".join(parts)


def _entry(name: str, thing: Any) -> str:
    parts = [f"### {name}\n", _signature(name, thing), docstring(thing)]
    if inspect.isclass(thing) and not issubclass(thing, Exception):
        fields = list(_fields(thing))
        parts += [_table(("field", "type", "default", ""), fields)] if fields else []
        parts += [_member(*found) for found in _members(thing)]
    return "\n".join(part for part in parts if part)


def _signature(name: str, thing: Any) -> str:
    """How it is called; a class by its fields below."""
    if inspect.isclass(thing):
        return ""
    signature = inspect.signature(thing)
    shown = list(_arguments(signature))
    result = "" if signature.return_annotation is signature.empty else f" -> {signature.return_annotation}"
    text = f"{name}({', '.join(shown)}){result}"
    if len(text) > _LONGEST_LINE:
        text = f"{name}(\n    " + ",\n    ".join(shown) + f",\n){result}"
    return f"```python\n{text}\n```\n"


def _arguments(signature: inspect.Signature) -> Iterator[str]:
    """The arguments as they stand in the source, where annotations are text."""
    bare = False
    for name, argument in signature.parameters.items():
        if argument.kind is argument.KEYWORD_ONLY and not bare:
            yield "*"
        bare = bare or argument.kind in (argument.KEYWORD_ONLY, argument.VAR_POSITIONAL)
        stars = {"VAR_POSITIONAL": "*", "VAR_KEYWORD": "**"}.get(argument.kind.name, "")
        kind = "" if argument.annotation is argument.empty else f": {argument.annotation}"
        default = "" if argument.default is argument.empty else f" = {argument.default!r}"
        if name != "self":
            yield stars + name + kind + default


def _fields(thing: type) -> Iterator[tuple[str, str, str, str]]:
    """Fields of a dataclass or a model: name, type, default, and the comment beside it in the source."""
    comments = field_comments(thing)
    if issubclass(thing, BaseModel):
        found = {name: (field.annotation, field.get_default()) for name, field in thing.model_fields.items()}
    else:
        plain = getattr(thing, "__dataclass_fields__", {})
        found = {name: (field.type, field.default) for name, field in plain.items() if not name.startswith("_")}
    for name, (annotation, default) in found.items():
        yield f"`{name}`", f"`{_type(annotation)}`", _default(default), comments.get(name, "")


def _default(value: object) -> str:
    if "Undefined" in repr(value) or "MISSING" in repr(value):
        return "*required*"
    return "" if callable(value) or isinstance(value, BaseModel) else f"`{value!r}`"


def field_comments(thing: type) -> dict[str, str]:
    """The comments beside the fields of a class, inherited ones too."""
    found: dict[str, str] = {}
    for owner in reversed(thing.__mro__):
        if owner.__module__.startswith("understudy"):
            pattern = r"^    (\w+): .*?  # (.+)$"
            found |= {name: _prose(text) for name, text in re.findall(pattern, inspect.getsource(owner), re.MULTILINE)}
    return found


def _members(thing: type) -> Iterator[tuple[str, Any]]:
    """Public methods and properties that the package itself defines."""
    for name, member in vars(thing).items():
        plain = member.__func__ if isinstance(member, (classmethod, staticmethod)) else member
        field = name in getattr(thing, "__dataclass_fields__", {})
        if not name.startswith("_") and not field and (inspect.isfunction(plain) or isinstance(member, property)):
            yield name, member


def _member(name: str, member: Any) -> str:
    if isinstance(member, property):
        return f"#### {name}\n\n*Property.* {docstring(member)}"
    plain = member.__func__ if isinstance(member, (classmethod, staticmethod)) else member
    return f"#### {name}\n\n{_signature(name, plain)}\n{docstring(plain)}"


def docstring(thing: Any) -> str:
    """A docstring as Markdown: sessions become code, a paragraph ``Privacy:`` stands out."""
    paragraphs = re.split(r"\n\s*\n", inspect.getdoc(thing) or "")
    return "\n\n".join(_paragraph(text) for text in paragraphs) + "\n"


def _paragraph(text: str) -> str:
    if text.startswith(">>>"):
        return f"```python\n{text}\n```"
    if text.startswith("Privacy:"):
        words = _prose(text.removeprefix("Privacy:").strip()).replace("\n", "\n    ")
        return f'!!! note "Privacy"\n\n    {words}'
    return _prose(text)


# Methods


def method_page(name: str, measured: str = "") -> str:
    """One method: what it does and follows, how it is called, what can be set, and what was measured."""
    method = get_method(name)
    described = docstring(sys.modules[type(method).__module__])
    command = f"understudy train {name} --data YOUR-DATA --epsilon 3 --delta 1e-6 --out runs/{name}"
    if not method.private:
        command = f"understudy train {name} --data YOUR-DATA --out runs/{name}"
    parts = [f"# {name}\n", described, f"```sh\n{command}\n```\n", _facts(method)]
    if method.presets:
        rows = [(f"`--preset {preset}`", _preset(values)) for preset, values in method.presets.items()]
        parts.append("## Presets\n\n" + _table(("preset", "what it sets"), rows))
    parts.append(
        "## Settings\n\nEach is set with `--set NAME=VALUE`, or in a file for `--config`. No default: it is "
        "decided from the declared facts and the budget, and `understudy plan` shows to what.\n"
    )
    parts.append(_table(("name", "type", "default", ""), list(settings(method.config_type))))
    return "\n".join([*parts, measured])


def _facts(method: Method) -> str:
    unit = "one client with all its images" if method.federated else "one record, that is one image with its label"
    if method.protects_people:
        unit += "; where people are declared, one person with all images"
    rows = [("paper", _prose(method.paper)), ("protects", unit if method.private else "nothing: it is **not private**")]
    proofs = [f"[{title}](../privacy.md#{slug(title)})" for title in _headings("privacy") if _speaks_of(title, method)]
    proofs += ["[Federated training](../federated.md#why-it-holds)"] if method.federated else []
    rows += [("why it holds", "; ".join(proofs))] if proofs else []
    rows += [("not covered", _prose(text)) for text in method.not_covered]
    return _table(("", ""), rows)


def _headings(page: str) -> list[str]:
    text = (ROOT / "docs" / f"{page}.md").read_text(encoding="utf-8")
    return re.findall(r"^##+ (.+)$", text, re.MULTILINE)


def _speaks_of(title: str, method: Method) -> bool:
    return bool(re.search(rf"(?<![\w-]){re.escape(method.name)}(?![\w-])", title))


def slug(title: str) -> str:
    """The anchor of a heading, as in ``mkdocs.yml`` and where the sources are read."""
    return re.sub(r"[^\w\- ]", "", title.replace("`", "").lower()).replace(" ", "-")


def settings(config: type[BaseModel], prefix: str = "") -> Iterator[tuple[str, str, str, str]]:
    """Every setting of a config with its type, default and comment; groups inside groups are followed."""
    yield from _settings(config, config(), prefix)


def _settings(config: type[BaseModel], values: BaseModel, prefix: str) -> Iterator[tuple[str, str, str, str]]:
    comments = field_comments(config)
    for name, field in config.model_fields.items():
        value = getattr(values, name)
        if isinstance(value, BaseModel):
            yield from _settings(type(value), value, f"{prefix}{name}.")
        else:
            default = "" if value is None else f"`{value!r}`".replace("'", '"')
            yield f"`{prefix}{name}`", f"`{_type(field.annotation)}`", default, comments.get(name, "")


def _type(annotation: Any) -> str:
    """A type in short: without modules, bounds and the None of what may be left out."""
    if isinstance(annotation, str):
        return annotation.removesuffix(" | None")
    kind, inner = get_origin(annotation), get_args(annotation)
    if kind is Annotated:
        return _type(inner[0])
    if kind is Literal:
        return " | ".join(f'"{value}"' for value in inner)
    if kind in (Union, UnionType):
        return " | ".join(_type(each) for each in inner if each is not type(None))
    if kind is not None:
        return f"{kind.__name__}[{', '.join('...' if each is Ellipsis else _type(each) for each in inner)}]"
    return getattr(annotation, "__name__", str(annotation))


def _preset(values: Any, prefix: str = "") -> str:
    parts = []
    for name, value in values.items():
        inner = _preset(value, f"{prefix}{name}.") if isinstance(value, dict) else f"`{prefix}{name}={value}`"
        parts.append(inner)
    return ", ".join(parts)


# Text


def _prose(text: str) -> str:
    """Words of the code as Markdown: double backticks become single ones, angle brackets stay text, guides links."""
    text = re.sub(r"(?<!`)``(?!`)", "`", text).replace("<", "&lt;").strip()
    return re.sub(r"\bdocs/([\w-]+\.md)", r"[\1](../\1)", text)


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    cells = [[" ".join(cell.split()).replace("|", "\\|") for cell in line] for line in lines]
    return "\n".join("| " + " | ".join(line) + " |" for line in cells) + "\n"
