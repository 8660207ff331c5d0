"""Flags from a configuration class: --help, the file, the environment and the flag all come from the field itself.

Knows no command. Typer reads a command's flags from its signature, so a signature is what is built here.
"""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import Annotated, Any, TypeVar

import typer

from pagewire.core.config import Loaded, Setting, load, settings

T = TypeVar("T")

CONFIG_HELP = "TOML file with any of these settings; variables and flags go before it"
SHOW_HELP = "print every setting, its value and where it came from, then stop"


def command(
    cls: type[T], run: Callable[..., None], *, fixed: Mapping[str, object] | None = None, others: Collection[str] = ()
) -> Callable[..., None]:
    """Return a function for Typer that loads a `cls` and runs it. `fixed` settings are no flags of this command.

    What `run` takes behind the `cls` are options of this command alone, as Typer reads them: in no file, no variable.
    `others` are PAGEWIRE_* variables that belong to somebody else.
    """
    set_here = fixed or {}
    own = [*inspect.signature(run, eval_str=True).parameters.values()][1:]

    def invoke(**given: Any) -> None:
        file, show = given.pop("config"), given.pop("show_config")
        beside = {each.name: given.pop(each.name) for each in own}
        told = {name: value for name, value in given.items() if value != []}  # a list that was not given
        loaded = load(cls, file=file, environ=os.environ, flags={**told, **set_here}, other_variables=others)
        if show:
            _show(loaded)
            return
        run(loaded.value, **beside)

    parameters = [
        *(each.replace(kind=inspect.Parameter.KEYWORD_ONLY) for each in own),
        _parameter("config", Path | None, None, typer.Option("--config", help=CONFIG_HELP, metavar="FILE")),
        *(_of(each) for each in settings(cls) if each.name not in set_here),
        _parameter("show_config", bool, False, typer.Option("--show-config", help=SHOW_HELP)),
    ]
    signature = inspect.Signature(parameters)
    invoke.__signature__ = signature  # type: ignore[attr-defined]
    invoke.__annotations__ = {name: each.annotation for name, each in signature.parameters.items()}
    invoke.__doc__ = run.__doc__
    return invoke


def variables(*classes: type) -> frozenset[str]:
    """Return the environment variables of all settings of `classes`."""
    return frozenset(each.variable for cls in classes for each in settings(cls))


def _of(each: Setting) -> inspect.Parameter:
    # Text, not the field's type: the loader parses flags exactly as it parses the environment.
    if each.kind is bool:
        option = typer.Option(f"{each.flag}/--no{each.flag[1:]}", help=describe(each), show_default=False)
        return _parameter(each.name, bool | None, None, option)
    metavar = "|".join(each.choices) or each.unit or {"str": "TEXT", "Path": "PATH"}.get(each.kind.__name__, "NUMBER")
    option = typer.Option(each.flag, help=describe(each), show_default=False, metavar=metavar)
    return _parameter(each.name, list[str] | None if each.is_list else str | None, None, option)


def describe(each: Setting) -> str:
    """Return the help of a setting: what it is, its unit, its default and its variable."""
    if each.is_required:
        default = "required"
    elif each.default is None:
        default = "the service's own"
    elif each.default in ("", ()):
        default = "unset"
    elif isinstance(each.default, tuple):
        default = f"{', '.join(map(str, each.default))} {each.unit}".strip()
    else:
        default = f"{each.default} {each.unit}".strip()
    again = "; once for each" if each.is_list else ""
    return f"{each.help}{again} (default: {default}; {each.variable})"


def _parameter(name: str, kind: Any, default: object, option: Any) -> inspect.Parameter:
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=Annotated[kind, option])


def _show(loaded: Loaded[Any]) -> None:
    rows = loaded.show()
    width = max(len(name) for name, _, _ in rows)
    for name, value, source in rows:
        typer.echo(f"{name:<{width}}  {value}  [{source}]")
