"""For users' tests: a graph without a broker, a cluster in memory whose requests can fail, the checker of a run.

In reading order:

request_faults  rule     faults of requests: lost, late, without an answer; outages
memory_records  rule     the records of a cluster in memory, as they are stored and as they are read
memory_broker   rule     a broker in memory: partitions, transactions, groups
memory_clients  acts     its producers and consumers, and the network between them
memory_target   acts     a sink's target in memory
memory_source   acts     a source of jobs in memory
memory_cluster  acts     a cluster in memory, on a clock that only the test moves, with injected faults
memory_jobs     acts     the jobs of a graph in memory
memory_peers    acts     a cluster of peers in memory
peers           acts     the peers of a TestDriver
contents        acts     the contents of the topics, sources, states and targets of a graph in memory
driver          acts     TestDriver: a graph in one thread, record by record
events          rule     the events of a test
history         adapter  records events in one order, over threads, processes and files
verdicts        rule     the comparisons of counts and order
expected        rule     the outputs that the records of a topic must have
evidence        rule     a history by topic and transaction, and the causes of each expected record
checker         acts     the checks: from a history to its anomalies
"""

from typing import TYPE_CHECKING

from kstreams_py.errors import HistoryError
from kstreams_py.graph.anomalies import Kind
from kstreams_py.testing.checker import check, explain
from kstreams_py.testing.contents import MemoryRegistry, Record
from kstreams_py.testing.driver import CrashPoint, TestDriver
from kstreams_py.testing.events import Isolation, Outcome
from kstreams_py.testing.expected import Expected
from kstreams_py.testing.history import History
from kstreams_py.testing.memory_cluster import ManualClock, MemoryCluster
from kstreams_py.testing.memory_source import MemorySource
from kstreams_py.testing.memory_target import MemoryTarget
from kstreams_py.testing.verdicts import Anomaly

if TYPE_CHECKING:
    from kstreams_py.testing.peers import Peers

__all__ = [
    "Anomaly",
    "CrashPoint",
    "Expected",
    "History",
    "HistoryError",
    "Isolation",
    "Kind",
    "ManualClock",
    "MemoryCluster",
    "MemoryRegistry",
    "MemorySource",
    "MemoryTarget",
    "Outcome",
    "Peers",
    "Record",
    "TestDriver",
    "check",
    "explain",
]

if not TYPE_CHECKING:  # for a type checker, any name would be there

    def __getattr__(name: str) -> object:
        """Imports the peers once they are asked for: they need the packages of an extra."""
        if name != "Peers":
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        from kstreams_py.testing.peers import Peers  # noqa: PLC0415

        return Peers
