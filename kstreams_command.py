"""The console script `kstreams`. It is outside the package, whose import takes a second in which Ctrl-C may come."""

from __future__ import annotations

import os
import signal
import sys


def main() -> None:
    """Run the command; a Ctrl-C while it is imported is one message and exit status 130."""

    def leave(*_: object) -> None:
        sys.stderr.write("interrupted\n")
        sys.stderr.flush()
        os._exit(130)

    before = signal.getsignal(signal.SIGINT)
    if before is not signal.SIG_IGN:  # as in a background job
        signal.signal(signal.SIGINT, leave)
    from kstreams_py.cli.main import main as run  # noqa: PLC0415, after the handler

    signal.signal(signal.SIGINT, before)
    run()


if __name__ == "__main__":  # spark-submit runs this file
    main()
