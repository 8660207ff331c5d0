"""`pagewire slo sweep`: a sweep over local clusters, begun or gone on with in its folder, and the table it ends in."""

from __future__ import annotations

import asyncio
import os
import sys
from pathlib import Path

from pagewire.cli.local_clusters import LocalClusters, cluster_flags
from pagewire.cli.progress import say
from pagewire.cli.slo_origin import command_line
from pagewire.core.config import ConfigError
from pagewire.slo.sweeps.finding import Finding, table
from pagewire.slo.sweeps.probe_plan import probe_workload, within_recording
from pagewire.slo.sweeps.sweep import Sweep
from pagewire.slo.sweeps.sweep_config import SweepConfig, differences
from pagewire.slo.sweeps.sweep_folder import SweepFolder

LOCK_TIMEOUT_S = 120.0  # a killed sweep's cluster ends by itself well before


def execute(config: SweepConfig, path: Path, *, retry: bool) -> int:
    """Make what is left of it, print the table and return the exit code: 1 where a configuration failed.

    Raises ConfigError where anything is wrong that can be known beforehand, or the folder is another sweep's.
    """
    for configuration in config.configurations():
        cluster_flags(configuration)
    for _ in probe_workload(config, config.lowest_rate, 0):
        pass  # a malformed recording is found before anything is started
    asked, config = config, within_recording(config)
    if config != asked:
        say(f"{config.trace} lasts through probes up to {config.highest_rate:.4g}/s: no higher rate is tried")
    findings = asyncio.run(_sweep(config, SweepFolder(path), retry=retry))
    print("\n".join(table(findings, config.attainment)))
    return 1 if any(finding.error for finding in findings) else 0


async def _sweep(config: SweepConfig, folder: SweepFolder, *, retry: bool) -> list[Finding]:
    def on_wait() -> None:
        say(f"waiting for another sweep in {folder.path}, or its cluster, to end")

    async with folder.locked(LOCK_TIMEOUT_S, on_wait) as lock:
        if (asked := folder.asked()) is not None and (different := differences(config, asked)):
            raise ConfigError(f"{folder.path} is of another sweep: {'; '.join(different)}: name another folder")
        if retry:
            for configuration in config.configurations():
                folder.forgive(configuration)
        clusters = LocalClusters(os.environ, lock)
        return await Sweep(config, clusters, folder, about={"command": command_line(sys.argv)}, say=say).run()
