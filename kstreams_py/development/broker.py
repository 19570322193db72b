"""The broker of `kstreams dev`: it runs as long as the command, and keeps its data for the next run."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from kstreams_py.embedded import EmbeddedKafka
from kstreams_py.embedded.jars import kafka_classpath
from kstreams_py.embedded.nodes import HOST, free_ports
from kstreams_py.errors import SettingsError

logger = logging.getLogger(__name__)

DIRECTORY: Final = ".kstreams"
"""The directory beside a graph that holds the data of its broker; git ignores it."""


@contextmanager
def open_broker(project: Path, port: int) -> Iterator[str]:
    """Runs a broker inside the block, and yields its address.

    - `project`: the directory of the graph. Its subdirectory `.kstreams` keeps the data.
    - `port`: the port of the broker.

    Raises SettingsError for a port that is taken, and for a directory that cannot be written or is in use. Also raises
    the exceptions of EmbeddedKafka.
    """
    directory = project / DIRECTORY
    try:
        directory.mkdir(exist_ok=True)
        (directory / ".gitignore").write_text("*\n", encoding="utf-8")
    except OSError as error:
        raise SettingsError(
            f"{directory} cannot be written: {error.strerror}: it would hold the data of the broker; use one that runs "
            "already, by --bootstrap-servers"
        ) from None
    if free_ports([port]) != [port]:
        raise SettingsError(
            f"port {port} of {HOST} is taken: choose another with --port, or use the broker that listens there: "
            f"--bootstrap-servers {HOST}:{port}"
        )
    with EmbeddedKafka(kafka_classpath(logger.info), data_dir=directory / "broker", port=port) as kafka:
        logger.info(
            "broker at %s; its data stays in %s: remove that directory to begin without it",
            kafka.bootstrap_servers,
            directory,
        )
        yield kafka.bootstrap_servers
