"""Typed configuration: a frozen dataclass filled from a TOML file, `PAGEWIRE_*` variables, flags, in rising priority.

A field made with `setting` describes itself (help, unit), so that --help, the file, the environment and `config show`
have one origin. Knows nothing of any service's fields, reads no environment of its own. Invariant: every value has
the type that its field declares and a source that can be named; an unknown key is an error, never ignored.
"""

from __future__ import annotations

import dataclasses
import difflib
import types
import typing
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any, Generic, TypeVar

from pagewire.core.document_files import read_toml

ENVIRONMENT_PREFIX = "PAGEWIRE_"
TRUE_WORDS = ("1", "true", "yes", "on")
FALSE_WORDS = ("0", "false", "no", "off")

T = TypeVar("T")


class ConfigError(ValueError):
    """A setting that is unknown, missing or of the wrong type; the message names it and where it came from."""


def setting(
    default: Any = dataclasses.MISSING,
    *,
    help: str,
    unit: str = "",
    parse: Callable[[str], object] | None = None,
    is_secret: bool = False,
) -> Any:
    """Return a dataclass field that describes itself. `parse` reads text, such as "1GiB", into the field's type."""
    metadata = {"help": help, "unit": unit, "parse": parse, "is_secret": is_secret}
    return dataclasses.field(default=default, metadata=metadata)


def setting_of(cls: type, name: str, **changed: Any) -> Any:
    """Return the setting `name` of another configuration class, but for its `default` or `help` where `changed`."""
    field = next(each for each in dataclasses.fields(cls) if each.name == name)
    default = changed.pop("default", field.default)
    return dataclasses.field(default=default, metadata={**field.metadata, **changed})


def passed_on(cls: type, name: str, **changed: Any) -> Any:
    """Return the same for who passes it on to a `cls` where it is given here: None where it is not."""
    return setting_of(cls, name, default=None, **changed)


Bounds = Mapping[str, tuple[str, Callable[[float], bool]]]
"""By names of numeric settings, with spaces between them: what each of them must be, in words and as a test."""


def check_bounds(config: object, bounds: Bounds) -> None:
    """Raise ValueError for the first setting that is not what it must be."""
    for names, (bound, holds) in bounds.items():
        for name in names.split():
            if not holds(getattr(config, name)):
                raise ValueError(f"{name} must be {bound}, is {getattr(config, name)}")


@dataclass(frozen=True, slots=True)
class Setting:
    """One field as its users see it. `kind` is its type without None; `choices` is empty where any value may stand."""

    name: str
    kind: type
    default: object
    help: str
    unit: str
    choices: tuple[str, ...]
    is_optional: bool
    is_list: bool
    is_secret: bool
    parse: Callable[[str], object] | None

    @property
    def variable(self) -> str:
        """The environment variable: PAGEWIRE_CHUNK_SIZE."""
        return ENVIRONMENT_PREFIX + self.name.upper()

    @property
    def flag(self) -> str:
        """The flag: --chunk-size."""
        return "--" + self.name.replace("_", "-")

    @property
    def is_required(self) -> bool:
        """True when nothing stands in for a missing value."""
        return self.default is dataclasses.MISSING


@dataclass(frozen=True, slots=True)
class Loaded(Generic[T]):
    """A configuration and where each of its values came from."""

    value: T
    sources: Mapping[str, str]

    def show(self) -> list[tuple[str, str, str]]:
        """Return (name, value, source) of every setting; secrets are not shown."""
        rows = []
        for each in settings(type(self.value)):
            value = getattr(self.value, each.name)
            text = f"{', '.join(map(str, value)) if each.is_list else value} {each.unit}".strip()
            if value is None or value in ("", ()):
                text = "(unset)"
            elif each.is_secret:
                text = "(set)"
            rows.append((each.name, text, self.sources[each.name]))
        return rows


def settings(cls: type) -> tuple[Setting, ...]:
    """Return the settings of a configuration class, in the order of its fields."""
    hints = typing.get_type_hints(cls)
    return tuple(_describe(field, hints[field.name]) for field in dataclasses.fields(cls))


def load(
    cls: type[T],
    *,
    file: Path | None = None,
    environ: Mapping[str, str],
    flags: Mapping[str, object],
    other_variables: Collection[str] = (),
) -> Loaded[T]:
    """Build a `cls` from its defaults, then `file`, then `environ`, then `flags`.

    A flag that is None was not given. `other_variables` are `PAGEWIRE_*` names that belong to someone else. Raises
    ConfigError on an unknown key, a wrong type, a missing value, or what the class itself refuses.
    """
    known = {each.name: each for each in settings(cls)}
    values: dict[str, object] = {}
    sources = dict.fromkeys(known, "default")
    for key, source, value in (
        *_from_file(file),
        *_from_environment(environ, known, other_variables),
        *((name, "--" + name.replace("_", "-"), value) for name, value in flags.items() if value is not None),
    ):
        if key not in known:
            raise ConfigError(f"unknown setting {key!r} from {source}{_nearest(key, known)}")
        values[key], sources[key] = _coerce(known[key], value, source), source
    missing = [each for each in known.values() if each.is_required and each.name not in values]
    if missing:
        first = missing[0]
        raise ConfigError(f"{first.name} is not set: give {first.flag}, {first.variable}, or {first.name} in the file")
    try:
        return Loaded(cls(**values), sources)
    except ConfigError:
        raise
    except ValueError as error:
        raise ConfigError(str(error)) from error


def _describe(field: dataclasses.Field[Any], hint: Any) -> Setting:
    parts = [part for part in typing.get_args(hint) if part is not types.NoneType]
    is_union = typing.get_origin(hint) in (typing.Union, types.UnionType)
    if is_union:
        if len(parts) != 1:
            raise TypeError(f"{field.name}: a setting has one type, or one type and None, not {hint}")
        hint = parts[0]
    is_list = typing.get_origin(hint) is tuple
    if is_list:
        hint = typing.get_args(hint)[0]
    choices: tuple[str, ...] = ()
    if typing.get_origin(hint) is typing.Literal:
        choices, hint = typing.get_args(hint), str
    elif issubclass(hint, StrEnum):
        choices = tuple(member.value for member in hint)
    return Setting(
        name=field.name,
        kind=hint,
        default=field.default,
        help=field.metadata.get("help", ""),
        unit=field.metadata.get("unit", ""),
        choices=choices,
        is_optional=is_union,
        is_list=is_list,
        is_secret=field.metadata.get("is_secret", False),
        parse=field.metadata.get("parse"),
    )


def _from_file(file: Path | None) -> list[tuple[str, str, object]]:
    if file is None:
        return []
    try:
        table = read_toml(file)
    except OSError as error:
        raise ConfigError(f"cannot read {file}: {error.strerror}") from error
    except ValueError as error:
        raise ConfigError(str(error)) from error
    return [(key.replace("-", "_"), str(file), value) for key, value in table.items()]


def _from_environment(
    environ: Mapping[str, str], known: Mapping[str, Setting], other_variables: Collection[str]
) -> list[tuple[str, str, object]]:
    found: list[tuple[str, str, object]] = []
    for variable, text in sorted(environ.items()):
        if not variable.startswith(ENVIRONMENT_PREFIX):
            continue
        name = variable.removeprefix(ENVIRONMENT_PREFIX).lower()
        if name not in known:
            if variable in other_variables:
                continue
            near = _nearest(variable, [each.variable for each in known.values()])
            raise ConfigError(f"unknown setting {variable!r} in the environment{near}")
        found.append((name, variable, text))
    return found


def _nearest(key: str, known: Collection[str]) -> str:
    close = difflib.get_close_matches(key, [*known], n=1)
    return f"; did you mean {close[0]!r}?" if close else f"; known are {', '.join(sorted(known))}"


def _coerce(each: Setting, value: object, source: str) -> object:
    if each.is_list:
        if isinstance(value, str):
            value = [part.strip() for part in value.split(",") if part.strip()]
        if not isinstance(value, list | tuple):
            raise _wrong(each, value, source, "a list")
        return tuple(_coerce_one(each, part, source) for part in value)
    return _coerce_one(each, value, source)


def _coerce_one(each: Setting, value: object, source: str) -> object:
    try:
        if isinstance(value, str):
            return _parse(each, value)
        if each.kind is float and type(value) is int:
            return _as_float(value)
        if type(value) is each.kind:
            return value
    except ValueError as error:
        raise _wrong(each, value, source, str(error)) from error
    raise _wrong(each, value, source, f"expected {each.kind.__name__}")


def _as_float(value: int) -> float:
    try:
        return float(value)
    except OverflowError:
        raise ValueError("there is no number as large") from None


def _parse(each: Setting, text: str) -> object:
    if each.parse is not None:
        return each.parse(text)
    if each.choices and text not in each.choices:
        raise ValueError(f"expected one of {', '.join(each.choices)}")
    if each.kind is bool:
        if text.lower() not in TRUE_WORDS + FALSE_WORDS:
            raise ValueError(f"expected one of {', '.join(TRUE_WORDS + FALSE_WORDS)}")
        return text.lower() in TRUE_WORDS
    if each.kind in (int, float):
        try:
            return each.kind(text)
        except ValueError:
            raise ValueError(f"expected {each.kind.__name__}") from None
    return each.kind(text)


def _wrong(each: Setting, value: object, source: str, reason: str) -> ConfigError:
    shown = "a secret" if each.is_secret else repr(value)
    return ConfigError(f"{each.name} from {source} is {shown}: {reason}")
