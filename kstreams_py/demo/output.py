"""The directory of a demonstration, and a broker that writes its log there."""

from __future__ import annotations

import logging
import shutil
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Final

from kstreams_py.embedded import EmbeddedKafka
from kstreams_py.errors import SettingsError
from kstreams_py.kafka.cluster import KafkaCluster
from kstreams_py.settings import Settings

LOG: Final = "run.log"


def prepare(output: Path, names: Iterable[str]) -> Path:
    """Creates the directory if necessary, and removes these files and directories of an earlier run.

    Raises SettingsError if the directory cannot be written.
    """
    try:
        output.mkdir(parents=True, exist_ok=True)
        for path in (output / name for name in names):
            if path.is_dir():
                shutil.rmtree(path)
            else:
                path.unlink(missing_ok=True)
    except OSError as error:
        raise SettingsError(f"the directory {output} cannot be written ({error}): name another with --output") from None
    return output.resolve()


@contextmanager
def open_cluster(output: Path) -> Iterator[tuple[Settings, KafkaCluster]]:
    """Yields settings and cluster of a temporary broker, with a temporary directory of schemas."""
    with (
        _logged_to(output / LOG),
        tempfile.TemporaryDirectory(prefix="kstreams-schemas-") as schemas,
        EmbeddedKafka() as kafka,
    ):
        settings = Settings.load(bootstrap_servers=kafka.bootstrap_servers, schema_directory=Path(schemas))
        with closing(KafkaCluster(settings)) as cluster:
            yield settings, cluster


@contextmanager
def _logged_to(path: Path) -> Iterator[None]:
    """Writes the log of this process to the file of the workers' log, because the screen uses the terminal."""
    root, handler = logging.getLogger(), logging.FileHandler(path)
    handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(name)s: %(message)s"))
    before, root.handlers = root.handlers, [handler]
    try:
        yield
    finally:
        root.handlers = before
        handler.close()
