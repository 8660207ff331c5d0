"""Runs `Cluster` with `fake_service` in place of the services: python run_cluster.py SETTING=VALUE..."""

from __future__ import annotations

import asyncio
import os
import sys
from pathlib import Path

from pagewire.cli.cluster import Cluster
from pagewire.cli.cluster_config import ClusterConfig
from pagewire.core.config import load
from pagewire.core.errors import PagewireError

PROGRAM = (sys.executable, str(Path(__file__).with_name("fake_service.py")))


def main() -> None:
    flags = dict(argument.split("=", 1) for argument in sys.argv[1:])
    config = load(ClusterConfig, environ={}, flags=flags).value
    try:
        asyncio.run(Cluster(config, Path("/no/model"), os.environ, PROGRAM).run())
    except PagewireError as error:
        print(error, file=sys.stderr)
        sys.exit(1)


if __name__ == "__main__":
    main()
