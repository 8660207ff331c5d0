"""Every setting has one origin, the right type, and a source that can be named."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Literal

import pytest

from pagewire.core.config import ConfigError, load, passed_on, setting, setting_of, settings
from pagewire.core.units import parse_bytes


class Colour(StrEnum):
    RED = "red"
    BLUE = "blue"


@dataclass(frozen=True, slots=True, kw_only=True)
class Example:
    name: str = setting(help="a name")
    port: int = setting(8000, help="a port")
    wait_s: float = setting(1.5, help="a wait", unit="s")
    is_open: bool = setting(False, help="a switch")
    pool: int = setting(1024, help="a size", unit="bytes", parse=parse_bytes)
    colour: Colour = setting(Colour.RED, help="a colour")
    order: Literal["up", "down"] = setting("up", help="an order")
    hosts: tuple[str, ...] = setting((), help="hosts")
    limit: int | None = setting(None, help="a limit")
    password: str = setting("", help="a password", is_secret=True)

    def __post_init__(self) -> None:
        if self.port == 13:
            raise ValueError("port 13 is unlucky")


@dataclass(frozen=True, slots=True, kw_only=True)
class Launcher:
    same: int = setting_of(Example, "pool")
    passed: int | None = passed_on(Example, "pool")
    named: int | None = passed_on(Example, "pool", help="a size of each")


def write(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "example.toml"
    path.write_text(text)
    return path


def test_defaults_fill_what_nobody_gave() -> None:
    loaded = load(Example, environ={}, flags={"name": "a"})
    assert loaded.value == Example(name="a")
    assert loaded.sources["name"] == "--name"
    assert loaded.sources["port"] == "default"


def test_a_flag_beats_the_environment_beats_the_file(tmp_path: Path) -> None:
    file = write(tmp_path, 'name = "file"\nport = 1\nwait_s = 2\nhosts = ["x", "y"]\n')
    environ = {"PAGEWIRE_NAME": "environment", "PAGEWIRE_PORT": "2", "HOME": "/"}
    loaded = load(Example, file=file, environ=environ, flags={"name": "flag", "port": None})
    assert (loaded.value.name, loaded.value.port, loaded.value.wait_s) == ("flag", 2, 2.0)
    assert loaded.value.hosts == ("x", "y")
    assert loaded.sources["name"] == "--name"
    assert loaded.sources["port"] == "PAGEWIRE_PORT"
    assert loaded.sources["wait_s"] == str(file)


def test_text_is_read_into_the_type_of_its_field() -> None:
    environ = {
        "PAGEWIRE_NAME": "a",
        "PAGEWIRE_WAIT_S": "0.25",
        "PAGEWIRE_IS_OPEN": "yes",
        "PAGEWIRE_POOL": "1.5GiB",
        "PAGEWIRE_COLOUR": "blue",
        "PAGEWIRE_ORDER": "down",
        "PAGEWIRE_HOSTS": "x, y",
        "PAGEWIRE_LIMIT": "3",
    }
    value = load(Example, environ=environ, flags={}).value
    assert value == Example(
        name="a",
        wait_s=0.25,
        is_open=True,
        pool=3 << 29,
        colour=Colour.BLUE,
        order="down",
        hosts=("x", "y"),
        limit=3,
    )
    assert isinstance(value.colour, Colour)


def test_an_unknown_key_is_an_error_that_names_it_and_the_nearest(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"'prot' from .*example.toml; did you mean 'port'"):
        load(Example, file=write(tmp_path, "prot = 1"), environ={}, flags={"name": "a"})
    with pytest.raises(ConfigError, match="'PAGEWIRE_PROT' in the environment; did you mean 'PAGEWIRE_PORT'"):
        load(Example, environ={"PAGEWIRE_PROT": "1"}, flags={"name": "a"})
    with pytest.raises(ConfigError, match="'zzz' from --zzz; known are colour, hosts"):
        load(Example, environ={}, flags={"zzz": 1})


def test_a_variable_of_somebody_else_is_left_alone_and_a_shared_one_is_read() -> None:
    environ = {"PAGEWIRE_MODELS_DIR": "/x"}
    others = {"PAGEWIRE_MODELS_DIR", "PAGEWIRE_PORT"}
    environ |= {"PAGEWIRE_PORT": "7"}
    loaded = load(Example, environ=environ, flags={"name": "a"}, other_variables=others)
    assert loaded.value == Example(name="a", port=7)


@pytest.mark.parametrize(
    ("variable", "text", "message"),
    [
        ("PAGEWIRE_PORT", "many", "port from PAGEWIRE_PORT is 'many': expected int"),
        ("PAGEWIRE_PORT", "1.5", "expected int"),
        ("PAGEWIRE_WAIT_S", "soon", "wait_s from PAGEWIRE_WAIT_S is 'soon': expected float"),
        ("PAGEWIRE_IS_OPEN", "maybe", "expected one of 1, true"),
        ("PAGEWIRE_POOL", "big", "is not a size"),
        ("PAGEWIRE_COLOUR", "green", "expected one of red, blue"),
        ("PAGEWIRE_ORDER", "left", "expected one of up, down"),
    ],
)
def test_a_wrong_value_is_an_error_that_names_its_source(variable: str, text: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        load(Example, environ={variable: text}, flags={"name": "a"})


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("port = true", "port from .* is True: expected int"),
        ("port = 1.0", "port from .* is 1.0: expected int"),
        ("name = 3", "name from .* is 3: expected str"),
        ("hosts = 3", "hosts from .* is 3: a list"),
        ("is_open = 1", "is_open from .* is 1: expected bool"),
        ("name = ", "is not TOML"),
    ],
)
def test_a_file_is_typed(tmp_path: Path, line: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        load(Example, file=write(tmp_path, line), environ={}, flags={})


def test_a_missing_file_and_a_missing_value_are_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"cannot read .*absent.toml"):
        load(Example, file=tmp_path / "absent.toml", environ={}, flags={})
    with pytest.raises(ConfigError, match="name is not set: give --name, PAGEWIRE_NAME, or name in the file"):
        load(Example, environ={}, flags={})


def test_what_the_class_refuses_is_a_config_error() -> None:
    with pytest.raises(ConfigError, match="port 13 is unlucky"):
        load(Example, environ={}, flags={"name": "a", "port": "13"})


def test_secrets_are_neither_shown_nor_quoted() -> None:
    loaded = load(Example, environ={"PAGEWIRE_PASSWORD": "hush"}, flags={"name": "a"})
    rows = {name: (value, source) for name, value, source in loaded.show()}
    assert rows["password"] == ("(set)", "PAGEWIRE_PASSWORD")
    assert rows["wait_s"] == ("1.5 s", "default")
    assert rows["limit"] == ("(unset)", "default")
    assert "hush" not in str(rows)


def test_a_setting_of_another_class_is_that_one_but_for_what_is_changed() -> None:
    (own,) = (each for each in settings(Example) if each.name == "pool")
    same, passed, named = settings(Launcher)
    assert same == dataclasses.replace(own, name="same")
    assert passed == dataclasses.replace(own, name="passed", default=None, is_optional=True)
    assert named == dataclasses.replace(passed, name="named", help="a size of each")


def test_settings_describe_themselves() -> None:
    described = {each.name: each for each in settings(Example)}
    assert described["name"].is_required
    assert described["wait_s"].unit == "s"
    assert described["wait_s"].flag == "--wait-s"
    assert described["colour"].choices == ("red", "blue")
    assert described["limit"].is_optional
    assert described["hosts"].is_list
