"""Habits that the code must not take up, each found in the source."""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Iterator

import pytest
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
    "engine/client.py",
    "kvtransfer/transports/communicator.py",
    "kvtransfer/transports/nixl_agent.py",
)
READ_ARGV = ("cli/", "engine/process.py", "engine/ranks/follower.py")
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
        if name.split(".")[0] in {"pickle", "marshal", "shelve", "dill", "cloudpickle"}:
            yield f"{file.name}:{line}: {name}"


def find_dynamic_code(file: SourceFile) -> Iterator[str]:
    for line, name, node in calls(file):
        if name in {"eval", "exec", "compile", "__import__"}:
            yield f"{file.name}:{line}: {name}()"
        if isinstance(node.func, ast.Call) and dotted(node.func.func) == "getattr":
            yield f"{file.name}:{line}: a call of getattr()'s result"


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
