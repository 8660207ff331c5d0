"""Mutants of one source file: the file with one small thing changed, each by a name that outlives moved lines.

What is changed: comparisons (their border and their sense), arithmetic, conditions, constants by one, operands of
and/or, the order of arguments, min/max and any/all, and statements that act, which go. What is left alone, for nobody
could tell or should: annotations, decorators, strings (they speak to people), `assert` (it says what cannot be), and
`__repr__` and a `check` of nothing but itself, which only look. Knows nothing of tests. Invariant: the same text yields
the same mutants in the same order.
"""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from types import CodeType

BORDERS: dict[type[ast.cmpop], type[ast.cmpop]] = {ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt}
OPPOSITES: dict[type[ast.cmpop], type[ast.cmpop]] = {
    **{ast.Lt: ast.GtE, ast.LtE: ast.Gt, ast.Gt: ast.LtE, ast.GtE: ast.Lt},
    **{
        ast.Eq: ast.NotEq,
        ast.NotEq: ast.Eq,
        ast.In: ast.NotIn,
        ast.NotIn: ast.In,
        ast.Is: ast.IsNot,
        ast.IsNot: ast.Is,
    },
}
ARITHMETIC: dict[type[ast.operator], type[ast.operator]] = {
    **{ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.FloorDiv, ast.Div: ast.Mult, ast.FloorDiv: ast.Mult},
    **{ast.Mod: ast.Mult, ast.Pow: ast.Mult, ast.LShift: ast.RShift, ast.RShift: ast.LShift},
    **{ast.BitAnd: ast.BitOr, ast.BitOr: ast.BitAnd, ast.BitXor: ast.BitAnd},
}
NAMES = {"min": "max", "max": "min", "any": "all", "all": "any"}
LEFT_ALONE = {"annotation", "returns", "decorator_list", "bases", "keywords of ClassDef", "ctx", "type_params"}
ACTS = (ast.Raise, ast.Continue, ast.Break, ast.Delete, ast.AugAssign)


@dataclass(frozen=True, slots=True)
class Mutant:
    """One changed file. `lines` are those of the changed statement; `runs_at_import` where no function is around it."""

    name: str
    lines: range
    runs_at_import: bool
    code: CodeType


@dataclass(frozen=True, slots=True)
class Site:
    """One place of a tree where a node stands, within which function and which statement."""

    node: ast.AST
    parent: ast.AST
    put: Callable[[ast.AST], None]
    scope: str
    runs_at_import: bool
    lines: range
    is_condition: bool


def mutants_of(source: str, file_name: str) -> Iterator[Mutant]:
    """Yield every mutant of a file, its code compiled as if it came from `file_name`."""
    tree = ast.parse(source)
    original = compile(tree, file_name, "exec", dont_inherit=True)
    names: Counter[str] = Counter()
    for site in list(_sites(tree)):
        # A number says little; what it stands in says which it is.
        shown = site.parent if isinstance(site.node, ast.Constant) and not hasattr(site.parent, "body") else site.node
        was = ast.unparse(shown)
        for changed in _variants(site):
            site.put(ast.fix_missing_locations(ast.copy_location(changed, site.node)))
            code = compile(tree, file_name, "exec", dont_inherit=True)
            now = ast.unparse(shown if shown is site.parent else changed)
            site.put(site.node)
            if code == original or now == was:
                continue
            name = f"{site.scope}: {_change(was, now)}"
            names[name] += 1
            nth = f" #{names[name]}" if names[name] > 1 else ""
            yield Mutant(name + nth, site.lines, site.runs_at_import, code)


def _change(was: str, now: str) -> str:
    """Return both texts, cut around where they differ."""
    if now == "pass":
        return f"{_cut(was, 0)} -> pass"
    same = next((i for i, (a, b) in enumerate(zip(was, now, strict=False)) if a != b), min(len(was), len(now)))
    return f"{_cut(was, same)} -> {_cut(now, same)}"


def _cut(text: str, place: int) -> str:
    start = 0 if len(text) <= 100 else max(min(place - 40, len(text) - 100), 0)
    cut = " ".join(text[start : start + 100].split())
    return f"{'…' if start else ''}{cut}{'…' if start + 100 < len(text) else ''}"


def _head(statement: ast.stmt) -> range:
    """Return the lines of a statement without those of its body."""
    body = getattr(statement, "body", None)
    last = body[0].lineno - 1 if body else statement.end_lineno or statement.lineno
    return range(statement.lineno, max(last, statement.lineno) + 1)


def _sites(tree: ast.Module) -> Iterator[Site]:
    yield from _below(tree, "", True, range(0))


def _below(parent: ast.AST, scope: str, at_import: bool, lines: range) -> Iterator[Site]:
    """Yield the places below a node, outer ones first."""
    for field, value in ast.iter_fields(parent):
        if field in LEFT_ALONE or f"{field} of {type(parent).__name__}" in LEFT_ALONE:
            continue
        nodes = value if isinstance(value, list) else [value]
        for index, node in enumerate(nodes):
            if not isinstance(node, ast.AST) or _is_left_alone(node):
                continue

            def put(new: ast.AST, field: str = field, value: object = value, index: int = index) -> None:
                if isinstance(value, list):
                    value[index] = new
                else:
                    setattr(parent, field, new)

            around = _head(node) if isinstance(node, ast.stmt) else lines
            yield Site(node, parent, put, scope or "module", at_import, around, field == "test" or field == "ifs")
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
                inner = f"{scope}.{node.name}".lstrip(".")
                if isinstance(node, ast.ClassDef):
                    yield from _below(node, inner, at_import, around)
                else:
                    yield from _below(node.args, inner, at_import, around)
                    body = ast.Module(node.body, [])  # shares the list: what is put there is put into the function
                    yield from _below(body, inner, False, around)
            elif isinstance(node, ast.Lambda):
                yield from _below(node, scope, False, around)
            else:
                yield from _below(node, scope, at_import, around)


def _is_left_alone(node: ast.AST) -> bool:
    if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
        return True  # a docstring, or the body of a protocol's method
    if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING":
        return True
    if isinstance(node, ast.FunctionDef):
        return node.name == "__repr__" or (node.name == "check" and ast.unparse(node.args) == "self")
    return isinstance(node, ast.Assert | ast.JoinedStr)


def _variants(site: Site) -> Iterator[ast.AST]:
    node = site.node
    if isinstance(node, ast.Compare) and len(node.ops) == 1:
        kind = type(node.ops[0])
        for other in (BORDERS.get(kind), OPPOSITES[kind]):
            if other is not None:
                yield ast.Compare(node.left, [other()], node.comparators)
    elif isinstance(node, ast.Compare):
        for index, op in enumerate(node.ops):
            if type(op) in BORDERS:
                yield ast.Compare(
                    node.left, [*node.ops[:index], BORDERS[type(op)](), *node.ops[index + 1 :]], node.comparators
                )
    elif isinstance(node, ast.BoolOp):
        for index in range(len(node.values)):
            rest = [*node.values[:index], *node.values[index + 1 :]]
            yield rest[0] if len(rest) == 1 else ast.BoolOp(node.op, rest)
    elif isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not | ast.USub):
        yield node.operand
    elif isinstance(node, ast.BinOp) and type(node.op) in ARITHMETIC:
        yield ast.BinOp(node.left, ARITHMETIC[type(node.op)](), node.right)
    elif isinstance(node, ast.Constant):
        yield from _constants(node.value)
    elif isinstance(node, ast.Call):
        yield from _calls(node)
        if site.is_condition:
            yield ast.UnaryOp(ast.Not(), node)
    elif isinstance(node, ast.stmt):
        yield from _statements(node)
    elif site.is_condition and isinstance(node, ast.expr):
        yield ast.UnaryOp(ast.Not(), node)


def _constants(value: object) -> Iterator[ast.AST]:
    if isinstance(value, bool):
        yield ast.Constant(not value)
    elif isinstance(value, int):
        yield ast.Constant(value + 1)
        yield ast.Constant(value - 1)
    elif isinstance(value, float):
        yield ast.Constant(value + 1)


def _calls(node: ast.Call) -> Iterator[ast.AST]:
    if isinstance(node.func, ast.Name) and node.func.id in NAMES:
        yield ast.Call(ast.Name(NAMES[node.func.id], ast.Load()), node.args, node.keywords)
    elif not any(isinstance(arg, ast.Starred) for arg in node.args):
        for index in range(len(node.args) - 1):
            args = list(node.args)
            args[index : index + 2] = reversed(args[index : index + 2])
            yield ast.Call(node.func, args, node.keywords)


def _statements(node: ast.stmt) -> Iterator[ast.AST]:
    targets = node.targets if isinstance(node, ast.Assign) else [node.target] if isinstance(node, ast.AnnAssign) else []
    # Without what it is given, a bare name would only be missing.
    is_kept = any(isinstance(target, ast.Attribute | ast.Subscript) for target in targets)
    if isinstance(node, (*ACTS, ast.Expr)) or is_kept:
        yield ast.Pass()
    if isinstance(node, ast.AugAssign) and type(node.op) in ARITHMETIC:
        yield ast.AugAssign(node.target, ARITHMETIC[type(node.op)](), node.value)
    if isinstance(node, ast.Return):
        is_none = node.value is None or (isinstance(node.value, ast.Constant) and node.value.value is None)
        yield ast.Pass() if is_none else ast.Return(ast.Constant(None))
