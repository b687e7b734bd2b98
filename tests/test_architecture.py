"""The architecture as rules: one direction, no way back; light where it must be light; nothing that could run code.

A rule takes the path of a module inside the package and its syntax tree, and names what breaks it.
"""

from __future__ import annotations

import ast
import json
import subprocess
import sys
import textwrap
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import understudy

SOURCE = Path(understudy.__file__).parent
STAGES = (  # a module imports from its own stage and earlier ones, never from a later one
    ("errors", "_lazy", "files", "devices", "processes"),
    ("data",),
    ("privacy",),
    ("models",),
    ("training",),
    ("federated",),
    ("methods",),
    ("release",),
    ("evaluate",),
    ("report",),
    ("inspection",),
    ("workflow",),
    ("annotation",),
    ("audit",),
    ("deployment",),
    ("cli",),
)
STAGE_OF = {room: number for number, rooms in enumerate(STAGES) for room in rooms}
ANNOTATIONS_ONLY = {("runs/run.py", "methods")}  # a run knows the type of its plan; nothing is imported to run it
LONGEST_FILE = 450
UNSAFE_MODULES = {"pickle", "cPickle", "_pickle", "dill", "cloudpickle", "joblib", "shelve", "marshal"}
UNSAFE_NAMES = {"eval", "exec", "__import__", "os.system", "torch.load", "torch.save", "torch.jit", "torch.hub"}
ALLOWED_NAMES = {("evaluate/inception.py", "torch.jit")}  # a published network; its SHA-256 is checked before loading
GLOBAL_RANDOMNESS = ("np.random", "numpy.random", "torch.manual_seed", "torch.seed")
DRAWS = ("torch.randn", "torch.rand", "torch.randint", "torch.randperm", "torch.bernoulli", "torch.multinomial")

Rule = Callable[[str, ast.Module], Iterator[str]]


def problems(rule: Rule) -> list[str]:
    """What breaks a rule, in all modules."""
    found = []
    for path in sorted(SOURCE.rglob("*.py")):
        name = path.relative_to(SOURCE).as_posix()
        found += [f"{name}: {problem}" for problem in rule(name, ast.parse(path.read_text(encoding="utf-8")))]
    return found


def room_of(name: str) -> str:
    return name.split("/")[0].removesuffix(".py")


def imported_names(node: ast.AST) -> Iterator[str]:
    """Full names of what a node imports, also by name: ``LazyModule("understudy.x")``, or an entry of the registry."""
    if isinstance(node, ast.Import):
        yield from (alias.name for alias in node.names)
    elif isinstance(node, ast.ImportFrom):
        yield from (f"{node.module}.{alias.name}" for alias in node.names)
    elif isinstance(node, ast.Constant) and isinstance(node.value, str) and node.value.startswith("understudy."):
        yield node.value


def dotted(node: ast.AST) -> str:
    """``a.b.c`` for an expression of that form, else something that no rule knows."""
    if isinstance(node, ast.Attribute):
        return f"{dotted(node.value)}.{node.attr}"
    return node.id if isinstance(node, ast.Name) else "?"


def inside_type_checking(tree: ast.Module) -> set[int]:
    blocks = [node for node in ast.walk(tree) if isinstance(node, ast.If) and dotted(node.test) == "TYPE_CHECKING"]
    return {id(inner) for block in blocks for part in block.body for inner in ast.walk(part)}


# Direction


def imports_from_later_stages(name: str, tree: ast.Module) -> Iterator[str]:
    if name == "__init__.py":  # the public names, from everywhere
        return
    if room_of(name) not in STAGE_OF:
        yield "a new room needs a place in STAGES"
        return
    annotations = inside_type_checking(tree)
    for node in ast.walk(tree):
        for imported in imported_names(node):
            package, _, rest = imported.partition(".")
            room = rest.split(".")[0]
            if package != "understudy" or (id(node) in annotations and (name, room) in ANNOTATIONS_ONLY):
                continue
            if STAGE_OF.get(room, len(STAGES)) > STAGE_OF[room_of(name)]:
                yield f"line {node.lineno} imports {imported}, a later stage"


def imports_that_hide_where_things_are(name: str, tree: ast.Module) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and (node.level or any(alias.name == "*" for alias in node.names)):
            yield f"line {node.lineno}: a relative or star import"
        if isinstance(node, ast.Import) and any(alias.name == "understudy" for alias in node.names):
            yield f"line {node.lineno}: imports the public names, which are for users"


def test_a_module_never_imports_from_a_later_stage():
    assert problems(imports_from_later_stages) == []


def test_imports_inside_say_where_things_come_from():
    assert problems(imports_that_hide_where_things_are) == []


# Light where it must be light


_IMPORT_LIGHTLY = """
    import importlib, json, pkgutil, sys

    names = [f"understudy.{name}" for name in ("release.verify", "release.meaning", "privacy.ledger", "privacy.budget")]
    for package in ("understudy.cli", "understudy.data", "understudy.methods", "understudy.privacy.accounting"):
        module = importlib.import_module(package)
        names += [f"{package}.{each.name}" for each in pkgutil.iter_modules(module.__path__)]
    for name in names:
        importlib.import_module(name)
    print(json.dumps([len(names), sorted({"torch", "matplotlib", "sklearn", "pandas"} & set(sys.modules))]))
"""


def test_accounting_planning_data_and_the_command_line_import_no_torch():
    """Only the import is tried here; that commands stay light while they run is tested with the command line."""
    script = textwrap.dedent(_IMPORT_LIGHTLY)
    result = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60)
    assert result.returncode == 0, result.stderr
    imported, heavy = json.loads(result.stdout)
    assert imported > 30
    assert heavy == []


def torch_in_accounting(name: str, tree: ast.Module) -> Iterator[str]:
    if name.startswith("privacy/accounting/"):
        for node in ast.walk(tree):
            if any(imported.split(".")[0] == "torch" for imported in imported_names(node)):
                yield f"line {node.lineno} imports torch"


def test_accounting_does_without_torch_even_inside_functions():
    assert problems(torch_in_accounting) == []


# Nothing that could run code, and no way around the mechanisms


def code_from_files(name: str, tree: ast.Module) -> Iterator[str]:
    for node in ast.walk(tree):
        if any(imported.split(".")[0] in UNSAFE_MODULES for imported in imported_names(node)):
            yield f"line {node.lineno} imports a module that reads pickles"
        if isinstance(node, (ast.Name, ast.Attribute)):
            used = dotted(node)
            if used in UNSAFE_NAMES and (name, used) not in ALLOWED_NAMES:
                yield f"line {node.lineno} uses {used}"
        if isinstance(node, ast.Call) and dotted(node.func).split(".")[0] in ("np", "numpy"):
            reads = dotted(node.func).split(".")[-1] in ("load", "read_array")
            safe = any(option.arg == "allow_pickle" and option.value.value is False for option in node.keywords)
            if reads and not safe:
                yield f"line {node.lineno}: say allow_pickle=False"


def secrets_from_elsewhere(name: str, tree: ast.Module) -> Iterator[str]:
    """Python's, numpy's and torch's global generators can be predicted or are shared by everybody."""
    if room_of(name) in ("models", "evaluate", "report") or name == "privacy/randomness/streams.py":
        return  # first weights, work on what is released, and the source itself
    for node in ast.walk(tree):
        if any(imported.split(".")[0] == "random" for imported in imported_names(node)):
            yield f"line {node.lineno} imports random"
        if isinstance(node, ast.Attribute) and f"{dotted(node)}.".startswith(GLOBAL_RANDOMNESS):
            yield f"line {node.lineno} uses {dotted(node)}"
        given = {option.arg for option in node.keywords} if isinstance(node, ast.Call) else set()
        if isinstance(node, ast.Call) and dotted(node.func) in DRAWS and "generator" not in given:
            yield f"line {node.lineno} draws without a generator"


def private_values_made_public(name: str, tree: ast.Module) -> Iterator[str]:
    """``run.report`` and ``ledger.note`` write for the public; names that end in ``_private`` have no place there."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in ("report", "note"):
            for part in [*node.args, *node.keywords]:
                for inner in ast.walk(part):
                    if isinstance(inner, ast.Name) and inner.id.endswith("_private"):
                        yield f"line {node.lineno} shows {inner.id}"


def test_no_file_can_bring_code_along():
    assert problems(code_from_files) == []


def test_noise_and_secrets_come_from_the_one_source_of_randomness():
    assert problems(secrets_from_elsewhere) == []


def test_private_values_are_not_reported():
    assert problems(private_values_made_public) == []


# Readable


def hard_to_read(name: str, tree: ast.Module) -> Iterator[str]:
    lines = (SOURCE / name).read_text(encoding="utf-8").count("\n") if (SOURCE / name).exists() else 0
    if lines >= LONGEST_FILE:
        yield f"{lines} lines"
    if len((ast.get_docstring(tree) or "").split()) < 2:
        yield "does not open with a sentence on what it is"


def untold_costs(name: str, tree: ast.Module) -> Iterator[str]:
    """A public function that takes a ``..._private`` value says so, itself or its class."""
    for owner in (tree, *(node for node in tree.body if isinstance(node, ast.ClassDef))):
        for function in owner.body:
            if not isinstance(function, ast.FunctionDef) or function.name.startswith("_"):
                continue
            taken = [argument.arg for argument in (*function.args.args, *function.args.kwonlyargs)]
            told = f"{ast.get_docstring(function)} {ast.get_docstring(owner) if owner is not tree else ''}"
            if any(argument.endswith("_private") for argument in taken) and "Privacy:" not in told:
                yield f"line {function.lineno}: {function.name} has no Privacy paragraph"


def test_files_are_short_and_say_what_they_are():
    assert problems(hard_to_read) == []


def test_functions_that_take_private_values_say_what_it_costs():
    assert problems(untold_costs) == []


def test_every_method_file_is_registered():
    from understudy.methods.registry import _METHODS

    shared = {"__init__", "base", "configuration", "embedding_share", "registry", "teacher_ensemble"}
    shared |= {"federated_claims", "federated_config"}
    files = {path.stem for path in (SOURCE / "methods").glob("*.py")} - shared
    assert files == {entry.split(":")[0].split(".")[-1] for entry in _METHODS.values()}


# The rules themselves


@pytest.mark.parametrize(
    ("rule", "name", "text"),
    [
        (imports_from_later_stages, "training/x.py", "import understudy.cli.main"),
        (imports_from_later_stages, "training/x.py", "from understudy.release import release"),
        (imports_from_later_stages, "training/x.py", "from understudy import workflow"),
        (imports_from_later_stages, "training/x.py", "def f():\n    from understudy.methods import base"),
        (imports_from_later_stages, "training/x.py", "x = LazyModule('understudy.methods.base')"),
        (imports_from_later_stages, "training/x.py", "if TYPE_CHECKING:\n    from understudy.methods import base"),
        (imports_from_later_stages, "data/x.py", "from understudy.no_such_room import anything"),
        (imports_from_later_stages, "no_such_room/x.py", ""),
        (imports_that_hide_where_things_are, "data/x.py", "from . import y"),
        (imports_that_hide_where_things_are, "data/x.py", "from understudy.data import *"),
        (imports_that_hide_where_things_are, "data/x.py", "import understudy"),
        (torch_in_accounting, "privacy/accounting/x.py", "def f():\n    import torch.nn"),
        (code_from_files, "data/x.py", "import pickle"),
        (code_from_files, "data/x.py", "def f():\n    from joblib import load"),
        (code_from_files, "data/x.py", "torch.load(path)"),
        (code_from_files, "data/x.py", "loader = torch.jit.load"),
        (code_from_files, "data/x.py", "eval(text)"),
        (code_from_files, "data/x.py", "np.load(path)"),
        (code_from_files, "data/x.py", "np.load(path, allow_pickle=True)"),
        (secrets_from_elsewhere, "training/x.py", "import random"),
        (secrets_from_elsewhere, "training/x.py", "np.random.default_rng(0)"),
        (secrets_from_elsewhere, "training/x.py", "torch.manual_seed(0)"),
        (secrets_from_elsewhere, "training/x.py", "torch.randn(3)"),
        (private_values_made_public, "methods/x.py", "run.report(step, norm=float(rows_private.norm()))"),
        (private_values_made_public, "methods/x.py", "ledger.note(f'{count_private}')"),
        (hard_to_read, "data/x.py", "x = 1"),
        (untold_costs, "data/x.py", "def f(rows_private):\n    '''Adds.'''"),
        (untold_costs, "data/x.py", "class A:\n    '''A.'''\n    def f(self, rows_private):\n        '''Adds.'''"),
    ],
)
def test_a_rule_notices_what_breaks_it(rule, name, text):
    assert list(rule(name, ast.parse(text)))
