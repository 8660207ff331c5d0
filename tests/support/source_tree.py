"""The product's source files and what they import, read with `ast`. Knows nothing of which imports are allowed."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
FOLDERS = tuple(sorted(path.name for path in (ROOT / "src" / "pagewire").iterdir() if path.is_dir()))


@dataclass(frozen=True, slots=True)
class SourceFile:
    """One Python file of the product: `name` is its path from the repository root."""

    path: Path

    @property
    def name(self) -> str:
        return self.path.relative_to(ROOT).as_posix()

    @property
    def folder(self) -> str:
        return self.path.relative_to(ROOT).parts[0]

    def tree(self) -> ast.Module:
        return ast.parse(self.path.read_text(), filename=self.name)

    def imports(self) -> Iterator[tuple[int, str]]:
        """Yield (line, dotted name) of every import, wherever it stands; `from a import b` yields `a.b`."""
        for node in ast.walk(self.tree()):
            if isinstance(node, ast.Import):
                yield from ((node.lineno, alias.name) for alias in node.names)
            elif isinstance(node, ast.ImportFrom):
                yield from ((node.lineno, f"{'.' * node.level}{node.module or ''}.{a.name}") for a in node.names)


def is_generated(path: Path) -> bool:
    return path.name.endswith(("_pb2.py", "_pb2_grpc.py"))


def source_files(*folders: str) -> list[SourceFile]:
    """Return the hand-written files of `folders`, or of the whole product."""
    return [
        SourceFile(path)
        for folder in folders or FOLDERS
        for path in sorted((ROOT / folder).rglob("*.py"))
        if not is_generated(path)
    ]
