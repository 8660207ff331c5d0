"""The `pagewire` program: runs the command line, and turns errors that have a name into one line and an exit code."""

from __future__ import annotations

import importlib.util
import sys

from pagewire.cli.progress import say
from pagewire.core.config import ConfigError
from pagewire.core.errors import PagewireError


def main() -> None:
    """Run the command line: exit code 2 on wrong use, 1 on a failure with a name."""
    if importlib.util.find_spec("typer") is None:
        say("pagewire: only the SDK is installed; the command line needs pagewire[router,engine,local]")
        sys.exit(2)
    from pagewire.cli.commands import build

    try:
        build()()
    except ConfigError as error:
        say(f"pagewire: {error}")
        sys.exit(2)
    except (PagewireError, OSError, OverflowError, ValueError) as error:
        say(f"pagewire: {str(error) or type(error).__name__}")
        sys.exit(1)


if __name__ == "__main__":
    main()
