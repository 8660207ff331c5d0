"""The secret of a cluster: another each time, or the one that is kept beside what is named with it."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from pagewire.cli.cluster_secret import NAME, cluster_secret
from pagewire.core.errors import Unavailable


def test_it_is_fresh_where_nothing_is_kept() -> None:
    assert cluster_secret(None) != cluster_secret(None)
    assert len(cluster_secret("")) == 64


def test_it_is_kept_for_its_owner_alone(tmp_path: Path) -> None:
    folder = tmp_path / "new" / "folder"
    secret = cluster_secret(str(folder))
    assert cluster_secret(str(folder)) == secret
    assert [path.name for path in folder.iterdir()] == [NAME]
    assert (folder / NAME).stat().st_mode & 0o777 == 0o600
    assert cluster_secret(str(tmp_path / "other")) != secret


def test_who_come_together_have_the_same(tmp_path: Path) -> None:
    with ThreadPoolExecutor(8) as pool:
        assert len({*pool.map(cluster_secret, [str(tmp_path)] * 40)}) == 1
    assert [path.name for path in tmp_path.iterdir()] == [NAME]


@pytest.mark.parametrize("content", [b"", b"short", b"\xff" * 64])
def test_what_is_no_secret_is_named(tmp_path: Path, content: bytes) -> None:
    (tmp_path / NAME).write_bytes(content)
    with pytest.raises(Unavailable, match=NAME if content != b"\xff" * 64 else "cannot be kept"):
        cluster_secret(str(tmp_path))


def test_a_folder_that_cannot_be_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(Unavailable, match=r"host_kv_dir .*/file: the cluster's secret cannot be kept there"):
        cluster_secret(str(tmp_path / "file"))
