"""The version that is told, of an installed package and of a copy of the tree."""

from __future__ import annotations

from importlib import metadata
from unittest import mock

from pagewire.core.own_version import UNKNOWN, own_version


def test_the_installed_version_is_told() -> None:
    assert own_version() == metadata.version("pagewire")


def test_a_copy_that_nobody_installed_runs_as_well() -> None:
    with mock.patch.object(metadata, "version", side_effect=metadata.PackageNotFoundError):
        assert own_version() == UNKNOWN
