"""Habits that the code must not take up, each found in the source."""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import source_tree
from source_tree import SourceFile, source_files

CONSTANT = re.compile(r"_?[A-Z][A-Z0-9_]*|__all__")
MUTABLE_CALLS = {"list", "dict", "set", "bytearray", "defaultdict", "deque", "Counter", "OrderedDict"}
MUTABLE_LITERALS = (ast.List, ast.Dict, ast.Set, ast.ListComp, ast.DictComp, ast.SetComp)

# Where a process meets its surroundings: the config loader, the command line, the environment of a child, and libraries
# that can be told only so.
READ_ENVIRONMENT = (
    "core/config.py",
    "core/local_models.py",
    "core/native_library.py",
    "cli/",
    "engine/__init__.py",  # OpenMP
    "engine/client.py",
    "kvtransfer/transports/process_group.py",
    "kvtransfer/transports/nixl_agent.py",
    "serving/span_export.py",  # where OpenTelemetry reads its own
)
READ_ARGV = ("cli/", "engine/process.py", "engine/ranks/follower.py")
# What may build any object, or run any code, of the bytes or the text that it is given.
SERIALIZERS = {"pickle", "_pickle", "cPickle", "marshal", "shelve", "dill", "cloudpickle", "joblib", "jsonpickle"}
RUN_CODE = {"eval", "exec", "compile", "__import__", "builtins.eval", "builtins.exec", "builtins.compile"}
UNSAFE_LOADERS = re.compile(
    r"torch\.(load|jit\.load|hub\..+|package\..+|serialization\.load)|(.+\.)?read_pickle"
    r"|yaml\.(unsafe|full)_load(_all)?|yaml\.(Unsafe|Full|C?)Loader"
)
YAML_LOADERS = {"yaml.load", "yaml.load_all"}  # as safe as the loader that they are given
SAFE_LOADERS = {"yaml.SafeLoader", "yaml.CSafeLoader"}
MUST_BE_FALSE = {"allow_pickle", "trust_remote_code"}  # settings of libraries, wherever they are given
# The first code of a process; `serving/logs.py` is how the others among them do it.
CONFIGURE_LOGGING = ("main.py", "engine/process.py", "serving/logs.py")


def dotted(node: ast.expr) -> str:
    """Return "a.b.c" for a chain of attributes of a name, "" for anything else."""
    if isinstance(node, ast.Name):
        return node.id
    if isinstance(node, ast.Attribute):
        head = dotted(node.value)
        return f"{head}.{node.attr}" if head else ""
    return ""


def calls(file: SourceFile) -> Iterator[tuple[int, str, ast.Call]]:
    for node in ast.walk(file.tree()):
        if isinstance(node, ast.Call):
            yield node.lineno, dotted(node.func), node


def find_globals(file: SourceFile) -> Iterator[str]:
    for node in ast.walk(file.tree()):
        if isinstance(node, ast.Global):
            yield f"{file.name}:{node.lineno}: global {', '.join(node.names)}"


def find_mutable_module_state(file: SourceFile) -> Iterator[str]:
    for node in file.tree().body:
        if isinstance(node, ast.Assign):
            names, value = [dotted(target) for target in node.targets], node.value
        elif isinstance(node, ast.AnnAssign) and node.value is not None:
            names, value = [dotted(node.target)], node.value
        else:
            continue
        is_mutable = isinstance(value, MUTABLE_LITERALS) or (
            isinstance(value, ast.Call) and dotted(value.func).rsplit(".", 1)[-1] in MUTABLE_CALLS
        )
        if is_mutable and not all(CONSTANT.fullmatch(name) for name in names):
            yield f"{file.name}:{node.lineno}: {', '.join(names)} is mutable module state"


def find_unsafe_imports(file: SourceFile) -> Iterator[str]:
    for line, name in file.imports():
        if name.split(".")[0] in SERIALIZERS:
            yield f"{file.name}:{line}: {name}"


def find_dynamic_code(file: SourceFile) -> Iterator[str]:
    for line, name, node in calls(file):
        if name in RUN_CODE:
            yield f"{file.name}:{line}: {name}()"
        if isinstance(node.func, ast.Call) and dotted(node.func.func) == "getattr":
            yield f"{file.name}:{line}: a call of getattr()'s result"


def find_code_by_another_name(file: SourceFile) -> Iterator[str]:
    for node in ast.walk(file.tree()):
        if isinstance(node, ast.Name) and node.id in {"eval", "exec", "__import__", "__builtins__"}:
            yield f"{file.name}:{node.lineno}: {node.id}"
    for line, name in file.imports():
        if name in RUN_CODE:
            yield f"{file.name}:{line}: {name}"


def find_unsafe_loads(file: SourceFile) -> Iterator[str]:
    tree = file.tree()
    full = full_names(tree)
    for line, name in file.imports():
        if UNSAFE_LOADERS.fullmatch(name):
            yield f"{file.name}:{line}: {name}"
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute | ast.Name):
            name = full(node)
            if UNSAFE_LOADERS.fullmatch(name):
                yield f"{file.name}:{node.lineno}: {name}"
        elif isinstance(node, ast.Call):
            given = {each.arg: each.value for each in node.keywords if each.arg is not None}
            for setting in MUST_BE_FALSE & given.keys():
                value = given[setting]
                if not (isinstance(value, ast.Constant) and value.value is False):
                    yield f"{file.name}:{node.lineno}: {setting} is not False"
            if (name := full(node.func)) in YAML_LOADERS:
                loaders = [*node.args[1:2], *([given["Loader"]] if "Loader" in given else [])]
                if [full(each) in SAFE_LOADERS for each in loaders] != [True]:
                    yield f"{file.name}:{node.lineno}: {name}() without a safe loader"


def full_names(tree: ast.Module) -> Callable[[ast.expr], str]:
    """Return what tells the dotted name of an expression, by what the file's imports call it."""
    known: dict[str, str] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            known |= {each.asname: each.name for each in node.names if each.asname is not None}
        elif isinstance(node, ast.ImportFrom) and not node.level:
            known |= {each.asname or each.name: f"{node.module}.{each.name}" for each in node.names}

    def full(node: ast.expr) -> str:
        head, dot, rest = dotted(node).partition(".")
        return f"{known.get(head, head)}{dot}{rest}"

    return full


def find_bad_waits(file: SourceFile) -> Iterator[str]:
    for line, name, _ in calls(file):
        # wait_for of Python 3.11 swallows a cancellation that meets a finished wait; asyncio.timeout does not.
        if name in {"time.sleep", "asyncio.wait", "asyncio.wait_for"}:
            yield f"{file.name}:{line}: {name}()"


def find_finalizers(file: SourceFile) -> Iterator[str]:
    for node in ast.walk(file.tree()):
        if isinstance(node, ast.FunctionDef) and node.name == "__del__":
            yield f"{file.name}:{node.lineno}: __del__"


def find_environment(file: SourceFile) -> Iterator[str]:
    for node in ast.walk(file.tree()):
        if not isinstance(node, ast.Attribute):
            continue
        name = dotted(node)
        if name in {"os.environ", "os.getenv", "os.putenv"} and not file.name.startswith(READ_ENVIRONMENT):
            yield f"{file.name}:{node.lineno}: {name}"
        if name == "sys.argv" and not file.name.startswith(READ_ARGV):
            yield f"{file.name}:{node.lineno}: {name}"
    for line, name in file.imports():
        if name in {"os.environ", "os.getenv", "sys.argv"}:
            yield f"{file.name}:{line}: {name}"


def find_logging_setup(file: SourceFile) -> Iterator[str]:
    for line, name, _ in calls(file):
        is_setup = name in {"logging.basicConfig", "logging.config.dictConfig"} or name.endswith(".addHandler")
        if is_setup and not file.name.endswith(CONFIGURE_LOGGING):
            yield f"{file.name}:{line}: {name}()"


def find_swallowed_errors(file: SourceFile) -> Iterator[str]:
    for node in ast.walk(file.tree()):
        if not isinstance(node, ast.ExceptHandler):
            continue
        broad = node.type is None or dotted(node.type) in {"Exception", "BaseException"}
        if broad and all(isinstance(statement, ast.Pass | ast.Continue) for statement in node.body):
            yield f"{file.name}:{node.lineno}: a broad except that does nothing"


def find_protobuf_inside(file: SourceFile) -> Iterator[str]:
    is_wire = file.path.stem in {"codec", "rpc", "wire"} or file.folder in {"protos", "serving", "client"}
    for line, name in file.imports():
        if re.search(r"_pb2(_grpc)?(\.|$)", name) and name.startswith("pagewire.") and not is_wire:
            yield f"{file.name}:{line}: {name} outside a codec, rpc or wire file"


@pytest.mark.parametrize(
    "find",
    [
        find_globals,
        find_mutable_module_state,
        find_unsafe_imports,
        find_dynamic_code,
        find_code_by_another_name,
        find_unsafe_loads,
        find_bad_waits,
        find_finalizers,
        find_environment,
        find_logging_setup,
        find_swallowed_errors,
        find_protobuf_inside,
    ],
)
def test_nothing_found(find: Callable[[SourceFile], Iterator[str]]) -> None:
    assert [what for file in source_files() for what in find(file)] == []


@pytest.fixture
def said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], SourceFile]:
    """Return what makes a file of the product that says something."""
    monkeypatch.setattr(source_tree, "ROOT", tmp_path)

    def say(text: str) -> SourceFile:
        path = tmp_path / "said.py"
        path.write_text(text)
        return SourceFile(path)

    return say


@pytest.mark.parametrize(
    ("find", "text"),
    [
        *((find_unsafe_imports, f"import {name}") for name in ("pickle", "marshal", "dill", "joblib")),
        (find_unsafe_imports, "def f():\n    from pickle import loads"),
        (find_dynamic_code, "eval('1')"),
        (find_dynamic_code, "import builtins\nbuiltins.exec('1')"),
        (find_dynamic_code, "getattr(thing, name)()"),
        (find_code_by_another_name, "run = eval"),
        (find_code_by_another_name, "from builtins import exec as run"),
        (find_unsafe_loads, "import torch\ntorch.load(f)"),
        (find_unsafe_loads, "import torch\ntorch.load(f, weights_only=True)"),
        (find_unsafe_loads, "import torch as t\nread = t.load"),
        (find_unsafe_loads, "from torch import load"),
        (find_unsafe_loads, "import torch\ntorch.jit.load(f)"),
        (find_unsafe_loads, "import torch\ntorch.hub.load('repo', 'model')"),
        (find_unsafe_loads, "import pandas as pd\npd.read_pickle(f)"),
        (find_unsafe_loads, "import numpy as np\nnp.load(f, allow_pickle=True)"),
        (find_unsafe_loads, "import numpy as np\nnp.load(f, allow_pickle=trusted)"),
        (find_unsafe_loads, "AutoModel.from_pretrained(m, trust_remote_code=True)"),
        (find_unsafe_loads, "import yaml\nyaml.load(f)"),
        (find_unsafe_loads, "import yaml\nyaml.load(f, Loader=yaml.Loader)"),
        (find_unsafe_loads, "import yaml\nyaml.load_all(f, loader)"),
        (find_unsafe_loads, "from yaml import load as read\nread(f, Loader=loader)"),
        (find_unsafe_loads, "import yaml\nyaml.unsafe_load(f)"),
        (find_unsafe_loads, "import yaml\nyaml.full_load_all(f)"),
        (find_unsafe_loads, "from yaml import UnsafeLoader"),
    ],
)
def test_what_runs_foreign_bytes_is_found(
    said: Callable[[str], SourceFile], find: Callable[[SourceFile], Iterator[str]], text: str
) -> None:
    assert [*find(said(text))] != []


@pytest.mark.parametrize(
    "text",
    [
        "module.eval()",
        "import re\nre.compile('x')",
        "import json\njson.load(f)",
        "import numpy as np\nnp.load(f, allow_pickle=False)",
        "import yaml\nyaml.safe_load(f)",
        "import yaml\nyaml.load(f, Loader=yaml.SafeLoader)",
        "from yaml import CSafeLoader, load\nload(f, CSafeLoader)",
        "from pagewire.engine import model\nmodel.load(f)",
    ],
)
def test_what_runs_none_is_not(said: Callable[[str], SourceFile], text: str) -> None:
    file = said(text)
    finds = (find_unsafe_imports, find_dynamic_code, find_code_by_another_name, find_unsafe_loads)
    assert [what for find in finds for what in find(file)] == []
