"""A process that knows no more of the wire than the last release did.

    python released_wire.py prefill --model ...      (as `pagewire prefill`, but old)

Its messages are built from protos/released alone: what the current build has added since is neither said nor heard, a
frame of a kind that is new breaks the link as it would there, and the versions it speaks are the released ones. What it
cannot show is how the released code behaved: the code is the current one.
"""

from __future__ import annotations

import functools
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from google.protobuf.descriptor_pb2 import FileDescriptorSet
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.message_factory import GetMessageClass

from pagewire.cli.main import main
from pagewire.core.errors import PeerMismatch
from pagewire.core.messages import LinkMessage
from pagewire.serving import handshake, link, link_dialer, link_server
from pagewire.serving.codec import link_codec

RELEASED = Path(__file__).resolve().parents[2] / "protos" / "released"


@functools.cache
def versions() -> dict[str, Any]:
    """Return what protos/released/released.toml says."""
    return tomllib.loads((RELEASED / "released.toml").read_text(encoding="utf-8"))


@functools.cache
def pool() -> DescriptorPool:
    """Return the released contract."""
    with tempfile.NamedTemporaryFile() as file:
        arguments = [f"-I{RELEASED}", "--include_imports", f"--descriptor_set_out={file.name}"]
        names = [f"pagewire/protos/{name}.proto" for name in ("link", "inference")]
        # Apart: what the compiler brings along does not get on with NIXL in one process.
        subprocess.run([sys.executable, "-P", "-m", "grpc_tools.protoc", *arguments, *names], check=True)
        described = FileDescriptorSet.FromString(Path(file.name).read_bytes())
    found = DescriptorPool()
    for each in described.file:
        found.Add(each)  # type: ignore[no-untyped-call]
    return found


def message(name: str) -> Any:
    """Return the class of a released message, by its full name."""
    return GetMessageClass(pool().FindMessageTypeByName(name))


def narrowed(kind: Any, data: bytes) -> bytes:
    """Return a message without whatever its released kind does not have."""
    known = kind.FromString(data)
    known.DiscardUnknownFields()
    narrow: bytes = known.SerializeToString()
    return narrow


class ReleasedCodec:
    """Stands in for `link_codec` of the version that was released."""

    def __init__(self) -> None:
        self._frames = message("pagewire.link.v1.Frames")
        self._codec = link_codec(versions()["link_version"])

    def encode(self, said: LinkMessage) -> bytes:
        """Return what a released process would have said; nothing where it did not know such a message."""
        batch = self._frames.FromString(self._codec.encode(said))
        batch.DiscardUnknownFields()
        kept = [frame for frame in batch.frames if frame.WhichOneof("body") is not None]
        data: bytes = self._frames(frames=kept).SerializeToString()
        return data

    def decode(self, data: bytes) -> Iterator[LinkMessage]:
        """Yield what a released process would have heard; raises PeerMismatch at a frame that it did not know."""
        yield from self._codec.decode(self._heard(data))

    def decode_one(self, data: bytes) -> LinkMessage:
        """Return what a released process would have heard; raises PeerMismatch."""
        return self._codec.decode_one(self._heard(data))

    def _heard(self, data: bytes) -> bytes:
        batch = self._frames.FromString(data)
        if any(frame.WhichOneof("body") is None for frame in batch.frames):
            raise PeerMismatch("an empty frame, or one of a newer wire version")
        return narrowed(self._frames, data)


def grow_old() -> None:
    """Make this process one of the last release, as far as its links go."""
    codec, version = ReleasedCodec(), versions()["link_version"]
    for module in (link_dialer, link_server):
        vars(module)["LINK_CODEC"] = codec
    vars(link)["link_codec"] = lambda _version: codec
    vars(handshake).update(WIRE_VERSION=version, OLDEST_WIRE_VERSION=version)


if __name__ == "__main__":
    grow_old()
    main()
