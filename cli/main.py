"""The `pagewire` program: runs the command line, and turns errors that have a name into one line and an exit code."""

from __future__ import annotations

import codecs
import importlib.util
import io
import os
import signal
import sys
from types import FrameType

from pagewire.cli.progress import say
from pagewire.core import descriptors
from pagewire.core.config import ConfigError
from pagewire.core.errors import PagewireError

EXTRAS = "router,engine,local,slo"


def main() -> None:
    """Run the command line: exit code 2 on wrong use, 1 on a failure with a name, 130 where Ctrl-C ended it."""
    descriptors.open_standard()
    if os.getpid() == 1:  # a container's first process hears of nothing that it does not handle
        signal.signal(signal.SIGTERM, _end)  # until a service has begun, which drains
    if importlib.util.find_spec("typer") is None:
        say("pagewire: only the SDK is installed; the command line needs pagewire[router,engine,local]")
        sys.exit(2)
    if sys.stdin is None:  # it was closed: as good as at its end
        sys.stdin = io.StringIO()
    descriptors.take_all()
    out = sys.stdout
    if isinstance(out, io.TextIOWrapper) and (out.errors == "strict" or codecs.lookup(out.encoding).name != "utf-8"):
        out.reconfigure(errors="backslashreplace")  # as stderr: a letter that it does not have ends no answer
    try:
        from pagewire.cli.commands import build  # which takes a while: a Ctrl-C may come before there is a command

        build()()
    except KeyboardInterrupt:
        sys.exit(128 + signal.SIGINT)
    except ConfigError as error:
        say(f"pagewire: {error}")
        sys.exit(2)
    except ModuleNotFoundError as error:
        if (error.name or "pagewire").partition(".")[0] == "pagewire":
            raise
        say(f"pagewire: this needs the package {error.name}, which is not here: install pagewire[{EXTRAS}]")
        sys.exit(2)
    except (PagewireError, OSError, OverflowError, ValueError) as error:
        said = _of_file(error) if isinstance(error, OSError) else str(error)
        say(f"pagewire: {said or type(error).__name__}")
        sys.exit(1)


def _end(number: int, _frame: FrameType | None) -> None:
    sys.exit(128 + number)


def _of_file(error: OSError) -> str:
    """Return what is wrong with which file, where it is about one."""
    return f"{error.filename}: {error.strerror}" if error.filename and error.strerror else str(error)


if __name__ == "__main__":
    main()
