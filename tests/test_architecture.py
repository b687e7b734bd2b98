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
from understudy.runs.folder import RunFolder

SOURCE = Path(understudy.__file__).parent
STAGES = (  # a module imports from its own stage and earlier ones, never from a later one
    ("errors", "configs", "files", "devices", "processes", "distributed"),
    ("data",),
    ("privacy",),
    ("models",),
    ("runs",),
    ("engines",),
    ("methods",),
    ("federated",),
    ("release",),
    ("evaluate",),
    ("api", "forecast", "progress", "following"),
    ("experiments",),
    ("report",),
    ("inspection",),
    ("audit",),
    ("federated/deployment",),
    ("cli", "__main__"),
)
STAGE_OF = {room: number for number, rooms in enumerate(STAGES) for room in rooms}
NAMED_ONLY = {("methods/registry.py", "federated")}  # the registry names every method in text and imports none of them
LONGEST_FILE = 450
UNSAFE_MODULES = {"pickle", "cPickle", "_pickle", "dill", "cloudpickle", "joblib", "shelve", "marshal"}
UNSAFE_NAMES = {"eval", "exec", "__import__", "os.system", "torch.load", "torch.save", "torch.jit", "torch.hub"}
ALLOWED_NAMES = {("evaluate/inception.py", "torch.jit")}  # a published network; its SHA-256 is checked before loading
GLOBAL_RANDOMNESS = ("np.random", "numpy.random", "torch.manual_seed", "torch.seed")
DOOR = "engines/records.py"  # through which private rows reach a device
INTO_TENSORS = ("torch.from_numpy", "torch.as_tensor", "torch.tensor", "torch.frombuffer", "torch.asarray")
ALLOWED_ROWS = {  # rows of images that are not private records
    "federated/client.py"  # generated images, as they travelled
}
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
    """The room of a file (``a/b.py``) or of an imported name (``a/b/c``); a room inside a room counts for itself."""
    parts = name.removesuffix(".py").split("/")
    return "/".join(parts[:2]) if "/".join(parts[:2]) in STAGE_OF else parts[0]


def imported_names(node: ast.AST) -> Iterator[str]:
    """Full names of what a node imports, also by name: ``import_module("understudy.x")``, an entry of the registry."""
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


# Direction


def imports_from_later_stages(name: str, tree: ast.Module) -> Iterator[str]:
    if name == "__init__.py":  # the public names, from everywhere
        return
    if room_of(name) not in STAGE_OF:
        yield "a new room needs a place in STAGES"
        return
    for node in ast.walk(tree):
        for imported in imported_names(node):
            package, _, rest = imported.partition(".")
            room = room_of(rest.split(":")[0].replace(".", "/"))
            if package != "understudy" or (isinstance(node, ast.Constant) and (name, room) in NAMED_ONLY):
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

    light = ("api", "release.signing", "release.verify", "privacy.meaning", "privacy.ledger", "privacy.plan")
    names = [f"understudy.{name}" for name in light]
    for package in ("understudy.cli", "understudy.data", "understudy.privacy.accounting", "understudy.runs"):
        module = importlib.import_module(package)
        names += [f"{package}.{each.name}" for each in pkgutil.iter_modules(module.__path__)]
    from understudy.methods.registry import _METHODS

    names += [entry.split(":")[0] for entry in _METHODS.values()]
    for name in names:
        importlib.import_module(name)
    heavy = {"torch", "matplotlib", "sklearn", "pandas", "model_signing"}
    print(json.dumps([len(names), sorted(heavy & set(sys.modules))]))
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


# One owner of a run on disk

_FILES = [getattr(RunFolder(Path("run")), name) for name, kind in vars(RunFolder).items() if isinstance(kind, property)]
NAMES_OF_A_RUN = {path.name for path in _FILES if isinstance(path, Path)}
NOT_OF_A_RUN = {("evaluate/private_cache.py", "private")}  # a folder of that name in the user's cache


def names_of_files_of_a_run(name: str, tree: ast.Module) -> Iterator[str]:
    """A file is named in ``runs/folder.py`` alone; a folder is called by a common word, so what counts is a path."""
    if name == "runs/folder.py":
        return
    for node in ast.walk(tree):
        part = node.right if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Div) else node
        spelled = part.value if isinstance(part, ast.Constant) else None
        if spelled in NAMES_OF_A_RUN and (part is not node or "." in spelled) and (name, spelled) not in NOT_OF_A_RUN:
            yield f"line {part.lineno} spells {spelled}; ask RunFolder"


def test_only_the_folder_of_a_run_names_its_files():
    assert {"run.json", "ledger.jsonl", "data.sha256", "release", "private"} <= NAMES_OF_A_RUN
    assert problems(names_of_files_of_a_run) == []


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


def private_rows_past_the_door(name: str, tree: ast.Module) -> Iterator[str]:
    """``images`` and ``labels`` of a data set become tensors in one place, which says what may be done with them."""
    if name == DOOR or name in ALLOWED_ROWS:
        return
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and dotted(node.func) in INTO_TENSORS:
            inner = [each for part in node.args for each in ast.walk(part) if isinstance(each, ast.Attribute)]
            if any(each.attr in ("images", "labels") for each in inner):
                yield f"line {node.lineno}: use {DOOR}"


def test_no_file_can_bring_code_along():
    assert problems(code_from_files) == []


def test_noise_and_secrets_come_from_the_one_source_of_randomness():
    assert problems(secrets_from_elsewhere) == []


def test_private_rows_reach_a_device_through_one_door():
    assert problems(private_rows_past_the_door) == []


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


def names_of_methods(tree: ast.Module) -> Iterator[str]:
    """What the classes of a module call themselves: ``name: ClassVar[str] = "dpgan"``."""
    for node in ast.walk(tree):
        if isinstance(node, ast.AnnAssign) and dotted(node.target) == "name" and isinstance(node.value, ast.Constant):
            yield node.value.value


def test_every_method_in_a_family_is_registered_where_it_lives():
    from understudy.methods.registry import _METHODS

    places = [*(SOURCE / "methods").glob("*/*.py"), *(SOURCE / "federated").glob("*.py")]
    found = {
        name: ".".join(("understudy", *path.relative_to(SOURCE).with_suffix("").parts))
        for path in places
        for name in names_of_methods(ast.parse(path.read_text(encoding="utf-8")))
    }
    assert found == {name: entry.split(":")[0] for name, entry in _METHODS.items()}


# The rules themselves


@pytest.mark.parametrize(
    ("rule", "name", "text"),
    [
        (imports_from_later_stages, "engines/x.py", "import understudy.cli.main"),
        (imports_from_later_stages, "engines/x.py", "from understudy.release import release"),
        (imports_from_later_stages, "engines/x.py", "from understudy import api"),
        (imports_from_later_stages, "engines/x.py", "def f():\n    from understudy.methods import base"),
        (imports_from_later_stages, "engines/x.py", "x = import_module('understudy.methods.base')"),
        (imports_from_later_stages, "engines/x.py", "if TYPE_CHECKING:\n    from understudy.methods import base"),
        (imports_from_later_stages, "federated/x.py", "from understudy.federated.deployment import processes"),
        (imports_from_later_stages, "data/x.py", "from understudy.no_such_room import anything"),
        (imports_from_later_stages, "no_such_room/x.py", ""),
        (imports_that_hide_where_things_are, "data/x.py", "from . import y"),
        (imports_that_hide_where_things_are, "data/x.py", "from understudy.data import *"),
        (imports_that_hide_where_things_are, "data/x.py", "import understudy"),
        (torch_in_accounting, "privacy/accounting/x.py", "def f():\n    import torch.nn"),
        (names_of_files_of_a_run, "cli/x.py", "path = folder / 'run.json'"),
        (names_of_files_of_a_run, "cli/x.py", "PATH = 'ledger.jsonl'"),
        (names_of_files_of_a_run, "cli/x.py", "place = out / 'release'"),
        (code_from_files, "data/x.py", "import pickle"),
        (code_from_files, "data/x.py", "def f():\n    from joblib import load"),
        (code_from_files, "data/x.py", "torch.load(path)"),
        (code_from_files, "data/x.py", "loader = torch.jit.load"),
        (code_from_files, "data/x.py", "eval(text)"),
        (code_from_files, "data/x.py", "np.load(path)"),
        (code_from_files, "data/x.py", "np.load(path, allow_pickle=True)"),
        (secrets_from_elsewhere, "engines/x.py", "import random"),
        (secrets_from_elsewhere, "engines/x.py", "np.random.default_rng(0)"),
        (secrets_from_elsewhere, "engines/x.py", "torch.manual_seed(0)"),
        (secrets_from_elsewhere, "engines/x.py", "torch.randn(3)"),
        (private_rows_past_the_door, "engines/x.py", "torch.from_numpy(data.images)"),
        (private_rows_past_the_door, "engines/x.py", "torch.from_numpy(run.data.labels[drawn])"),
        (private_rows_past_the_door, "audit/x.py", "torch.as_tensor(np.ascontiguousarray(data.images))"),
        (private_values_made_public, "methods/x.py", "run.report(step, norm=float(rows_private.norm()))"),
        (private_values_made_public, "methods/x.py", "ledger.note(f'{count_private}')"),
        (hard_to_read, "data/x.py", "x = 1"),
        (untold_costs, "data/x.py", "def f(rows_private):\n    '''Adds.'''"),
        (untold_costs, "data/x.py", "class A:\n    '''A.'''\n    def f(self, rows_private):\n        '''Adds.'''"),
    ],
)
def test_a_rule_notices_what_breaks_it(rule, name, text):
    assert list(rule(name, ast.parse(text)))
