"""A worker of event ordering as a process: `python -m tests.system.ordering_process SERVERS STORE TOPIC NAME`."""

from __future__ import annotations

import signal
import sys
import time

from kstreams_py import Settings
from kstreams_py.errors import KStreamsError
from kstreams_py.kafka.cluster import KafkaCluster
from kstreams_py.ordering.front_end import open_storage
from kstreams_py.ordering.sending import KafkaSender
from kstreams_py.ordering.worker import OrderingWorker


def main(servers: str, store: str, topic: str, name: str) -> None:
    """Runs until SIGTERM; an error ends the process with its exit status."""
    cluster = KafkaCluster(Settings(bootstrap_servers=servers))
    sender = KafkaSender(cluster, topic, name, time.sleep)
    worker = OrderingWorker(open_storage(store), sender, name, lanes=3, batch=4)
    signal.signal(signal.SIGTERM, lambda *_: worker.stop())
    try:
        worker.run()
    except KStreamsError as error:
        sys.exit(error.exit_status)
    finally:
        sender.close()
        cluster.close()


if __name__ == "__main__":
    main(*sys.argv[1:])
