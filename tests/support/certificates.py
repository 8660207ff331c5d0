"""Real certificates for tests of who may talk to whom: ours, a stranger's, and ones that are over or of elsewhere."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from pagewire.cli.certs import HOSTS, Authority, make
from pagewire.serving.tls import Tls


def issue(authority: Authority, folder: Path, name: str, *, days: float, hosts: Sequence[str] = HOSTS) -> list[Path]:
    """Write NAME.pem and NAME.key, of whoever is to be met at `hosts`."""
    paths = [folder / f"{name}.pem", folder / f"{name}.key"]
    for path, data in zip(paths, authority.signed(name, days=days, hosts=hosts), strict=True):
        path.write_bytes(data)
    return paths


@dataclass(frozen=True, slots=True)
class Certificates:
    """Folders of certificates, by whose they are."""

    folder: Path

    @classmethod
    def write(cls, folder: Path) -> Certificates:
        """Make all of them."""
        make(folder / "strangers")
        authority = Authority(days=1)
        ours = folder / "ours"
        ours.mkdir()
        (ours / "ca.pem").write_bytes(authority.pem)
        for name in ("router", "pod", "client"):
            issue(authority, ours, name, days=1)
        issue(authority, ours, "expired", days=-1)
        issue(authority, ours, "elsewhere", days=1, hosts=("elsewhere",))
        return cls(folder)

    def path(self, file: str, whose: str = "ours") -> Path:
        """Return a file's path."""
        return self.folder / whose / file

    def tls(self, name: str, *, whose: str = "ours", believes: str | None = "ours", called: str = "") -> Tls:
        """Return what shows the certificate `name`, and believes in the authority of `believes`."""
        ca = self.path("ca.pem", believes) if believes is not None else None
        return Tls(cert=self.path(f"{name}.pem", whose), key=self.path(f"{name}.key", whose), ca=ca, name=called)
