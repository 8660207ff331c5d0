"""The chart, rendered by Helm, and its manifests held against the schemas of Kubernetes and of the two operators."""

from __future__ import annotations

import copy
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import kubernetes_validate
import yaml
from cloudcoil.models.keda.v1alpha1 import ScaledObject
from cloudcoil.models.prometheus_operator.v1 import PodMonitor, PrometheusRule, ServiceMonitor

CHART = Path(__file__).parents[2] / "compose" / "chart"
REDIS = CHART / "charts" / "redis"
HELM = Path(sys.executable).parent / "helm"
HELM_VERSION = "v4.3.1"
KUBERNETES = ("1.30", "1.37")  # the oldest that the chart takes, and the newest whose schemas there are
# Of no version of Kubernetes: each by the model that was made of its definition.
OPERATORS = {
    "ScaledObject": ScaledObject,
    "PodMonitor": PodMonitor,
    "PrometheusRule": PrometheusRule,
    "ServiceMonitor": ServiceMonitor,
}

VOLUME = {"modelVolume": {"persistentVolumeClaim": {"claimName": "models", "readOnly": True}}}

Manifest = dict[str, Any]


@dataclass(frozen=True)
class Rendered:
    """What a release would consist of."""

    manifests: list[Manifest]

    def of(self, kind: str) -> list[Manifest]:
        """Return all of a kind."""
        return [each for each in self.manifests if each["kind"] == kind]

    def one(self, kind: str, name: str) -> Manifest:
        """Return the one of a kind whose name ends with `name`."""
        (found,) = [each for each in self.of(kind) if each["metadata"]["name"].endswith(name)]
        return found

    def templates(self) -> dict[str, Manifest]:
        """Return the pod templates' specs, by the name of their owner."""
        owners = [*self.of("Deployment"), *self.of("StatefulSet")]
        return {each["metadata"]["name"]: each["spec"]["template"]["spec"] for each in owners}


def helm(*arguments: str, values: Mapping[str, object] | None = None) -> subprocess.CompletedProcess[str]:
    """Run helm with `values`, whatever comes of it."""
    assert HELM.is_file(), "no helm beside this interpreter: run `make chart-tools`"
    given = ["--values", "-"] if values is not None else []
    text = yaml.safe_dump(dict(values or {}))
    return subprocess.run(
        [HELM, *arguments, *given], input=text, capture_output=True, text=True, timeout=120, check=False
    )


def render(
    values: Mapping[str, object] | None = None, *, release: str = "rel", chart: Path = CHART,
    kubeconfig: Path | None = None,
) -> Rendered:  # fmt: skip
    """Return what Helm makes of the chart, a folder or a package, with `values`, besides a volume of models.

    It asks nobody, or the API server of `kubeconfig`.
    """
    asks = ("--kubeconfig", str(kubeconfig), "--dry-run=server", "--disable-openapi-validation") if kubeconfig else ()
    done = helm("template", release, str(chart), "--namespace", "serving", *asks, values={**VOLUME, **(values or {})})
    assert done.returncode == 0, done.stderr
    return Rendered([each for each in yaml.safe_load_all(done.stdout) if each is not None])


def refusal(values: Mapping[str, object]) -> str:
    """Return what Helm says instead of rendering."""
    done = helm("template", "rel", str(CHART), values={**VOLUME, **values})
    assert done.returncode != 0, "it renders"
    return done.stderr


def check(manifest: Manifest) -> None:
    """Raise where a manifest is not what its schema says, in any of the versions."""
    kind = manifest["kind"]
    if kind in OPERATORS:
        model = OPERATORS[kind].model_validate(copy.deepcopy(manifest))
        kept = model.model_dump(by_alias=True, exclude_unset=True, mode="json")
        assert kept == manifest, f"{kind}: a field that its definition does not have"
        return
    for version in KUBERNETES:
        kubernetes_validate.validate(manifest, version, strict=True)
