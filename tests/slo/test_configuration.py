"""Grids of settings, and what a sweep refuses to be told."""

from __future__ import annotations

from pathlib import Path

import pytest

from pagewire.core.config import ConfigError, load
from pagewire.slo.sweeps.bracket import Bracketing, Listed
from pagewire.slo.sweeps.configuration import configurations, parse_pods
from pagewire.slo.sweeps.sweep_config import SweepConfig, differences


def test_every_combination_has_a_name_and_labels() -> None:
    found = configurations(["dtype=float32"], ["pods=1P:2D,2 colocated", "chunk-size=64,256"])
    assert [each.name for each in found] == [
        "1P:2D chunk_size=64", "1P:2D chunk_size=256", "2 colocated chunk_size=64", "2 colocated chunk_size=256",
    ]  # fmt: skip
    assert found[1].settings == {"pods": "1P:2D", "dtype": "float32", "chunk_size": "256"}
    assert found[1].labels == {"prefill": 1, "decode": 2, "chunk_size": 256}
    assert found[2].labels == {"colocated": 2, "chunk_size": 64}
    assert [each.slug for each in found][2:] == ["2-colocated-chunk_size=64", "2-colocated-chunk_size=256"]


def test_without_a_grid_there_is_one_cluster() -> None:
    (alone,) = configurations([], [])
    assert (alone.name, alone.settings) == ("1P:1D", {"pods": "1P:1D"})
    (other,) = configurations(["pods=3 colocated", "transports=shm,grpc"], [])
    assert (other.name, other.settings["transports"]) == ("3 colocated", "shm,grpc")


def test_labels_are_numbers_where_values_are() -> None:
    (found,) = configurations([], ["policy=slo", "step_target_ms=2.5"])
    assert found.labels == {"prefill": 1, "decode": 1, "policy": "slo", "step_target_ms": 2.5}


def test_a_thousand_clusters_are_the_most_that_a_sweep_tries() -> None:
    tens = [",".join(map(str, range(10))) for _ in range(3)]
    grid = [f"{name}={values}" for name, values in zip("abc", tens, strict=True)]
    assert len(configurations([], grid)) == 1000
    with pytest.raises(ValueError, match="1001 configurations are more than a sweep tries, which is 1000"):
        configurations([], [f"a={','.join(map(str, range(1001)))}"])


def test_names_are_what_is_varied_and_slugs_are_fit_for_files() -> None:
    (found,) = configurations(["dtype = float32"], ["pods=2P:3D", "policy=slo: now"])
    assert (found.name, found.slug) == ("2P:3D policy=slo: now", "2P-3D-policy=slo-now")
    assert (found.pods, found.varied) == ({"prefill": 2, "decode": 3}, ("pods", "policy"))
    assert found.settings == {"pods": "2P:3D", "dtype": "float32", "policy": "slo: now"}
    assert parse_pods("12P:34D") == {"prefill": 12, "decode": 34}
    assert parse_pods("5colocated") == parse_pods("5 colocated") == {"colocated": 5}


@pytest.mark.parametrize("name", ["prefill", "decode", "colocated"])
def test_pods_are_said_with_pods(name: str) -> None:
    with pytest.raises(ValueError, match=f"{name} is said with pods"):
        configurations([], [f"{name}=1,2"])


@pytest.mark.parametrize(
    ("common", "grid", "message"),
    [
        ([], ["64,256"], "not like"),
        ([], ["a=1", "a=2"], "twice"),
        (["a=1"], ["a=2"], "varied too"),
        (["prefill=2"], [], "said with pods"),
        ([], ["pods=two"], "neither"),
        ([], ["policy=a b,a-b"], "two configurations"),
    ],
)
def test_what_is_no_grid_is_refused(common: list[str], grid: list[str], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        configurations(common, grid)


@pytest.mark.parametrize("text", ["", "1P", "P:D", "1P:1D colocated", "-1P:1D", "1:1"])
def test_pods_that_are_none(text: str) -> None:
    with pytest.raises(ValueError, match="neither"):
        parse_pods(text)


def test_a_file_a_variable_and_a_flag_say_the_same(tmp_path: Path) -> None:
    path = tmp_path / "sweep.toml"
    path.write_text('grid = ["pods=1P:1D,2 colocated", "chunk_size=64,256"]\ninput = "16"\nslo = "ttft=1s"\n')
    from_file = load(SweepConfig, file=path, environ={}, flags={}).value
    environ = {"PAGEWIRE_GRID": "pods=1P:1D,2 colocated,chunk_size=64,256", "PAGEWIRE_INPUT": "16"}
    from_environ = load(SweepConfig, environ={**environ, "PAGEWIRE_SLO": "ttft=1s"}, flags={}).value
    flags = {"grid": ["pods=1P:1D,2 colocated", "chunk_size=64,256"], "input": "16", "slo": "ttft=1s"}
    from_flags = load(SweepConfig, environ={}, flags=flags).value
    assert from_file == from_flags
    assert from_environ.configurations() == from_flags.configurations()
    assert len(from_flags.configurations()) == 4


def test_rates_are_searched_for_unless_they_are_listed() -> None:
    search = SweepConfig(rate=4.0).search()
    assert isinstance(search, Bracketing)
    assert (search.first, search.targets) == (4.0, (0.9, 0.95, 0.99))
    assert isinstance(SweepConfig(rates=(1.0, 2.0)).search(), Listed)


@pytest.mark.parametrize(
    ("told", "message"),
    [
        ({"concurrency": 4}, "closed loop"),
        ({"duration_s": 0.0, "warmup_s": 0.0}, "duration_s"),
        ({"requests": 100}, "requests is 100"),
        ({"timeout_s": 0.0}, "timeout_s"),
        ({"lowest_rate": 0.1}, "about 5 requests in 50 s"),
        ({"rates": (0.1, 5.0)}, "raise duration_s, or the rate"),
        ({"slo": "itl=1s"}, "no objective"),
        ({"attainment": (0.9, 90.0)}, "between 0 and 1"),
        ({"rate": 2000.0}, "not between"),
        ({"token_ids": "many"}, "token ids"),
        ({"grid": ("pods=2",)}, "neither"),
    ],
)
def test_what_is_no_sweep_is_refused(told: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        SweepConfig(**told)  # type: ignore[arg-type]


def test_only_what_leaves_old_probes_true_may_change() -> None:
    before = SweepConfig(grid=("chunk_size=64",)).as_json()
    assert differences(SweepConfig(grid=("chunk_size=64,128",), repeats=5, title="t", rate=3.0), before) == []
    assert differences(SweepConfig(slo="ttft=1s", seed=1), before) == [
        "seed was 0 and is 1",
        "slo was '' and is 'ttft=1s'",
    ]
