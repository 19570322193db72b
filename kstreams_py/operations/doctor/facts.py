"""Collects the facts of a diagnosis, and names those that this user may not see."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Final, TypeVar

from kstreams_py.errors import BrokerUnavailable, KStreamsError
from kstreams_py.kafka.administration import GroupAdmin
from kstreams_py.kafka.cluster_admin import ClusterAdmin
from kstreams_py.kafka.contracts import TopicInfo
from kstreams_py.kafka.described_cluster import ClusterDescription, GroupPositions, Logs
from kstreams_py.kafka.errors import TESTED_CLIENTS, client_version
from kstreams_py.kafka.groups import POSITIONS_TOPIC, GroupInfo
from kstreams_py.kafka.transaction_admin import TransactionAdmin
from kstreams_py.kafka.transactions import TRANSACTIONS_TOPIC
from kstreams_py.operations.dead_letters.text import show_time
from kstreams_py.operations.doctor.findings import Examined, Facts, LettersFact
from kstreams_py.operations.recover.status import find_undeclared, read_status
from kstreams_py.operations.recover.task_status import TaskStatus, UndeclaredProcessor
from kstreams_py.operations.sources import inspect_sources
from kstreams_py.operations.transactions.abort import Findings, Transactions
from kstreams_py.operations.transactions.hanging import FoundTransaction, clusters_of, topics_of
from kstreams_py.processing.beginning import BegunPartition, read_begun
from kstreams_py.processing.dead_letters.counting import LetterCounter
from kstreams_py.records import Positions, TopicPartition
from kstreams_py.settings import Settings
from kstreams_py.steps.environment import Environment

T = TypeVar("T")

POSITIONS: Final = "positions of the groups"

OPEN_SECONDS: Final = 60.0
"""Minimum age, in seconds, of an open transaction that is reported."""

COUNT_SECONDS: Final = 10.0
"""Seconds for counting dead letters: if they are not enough, the finding says "at least"."""


SHOWN: Final = 3
"""The maximum number of refused inputs that are shown for a source."""


class Examination:
    """Collects facts of a cluster, and of a graph on it."""

    def __init__(self, environment: Environment, examined: Examined | None) -> None:
        """Makes no request."""
        self._environment = environment
        self._examined = examined
        self._unseen: dict[str, str] = {}

    def collect(self) -> Facts:
        """Returns the facts. Raises BrokerUnavailable if the cluster itself cannot be described.

        Asks no broker for a graph that uses no topics.
        """
        settings, examined = self._environment.settings, self._examined
        sources = {} if examined is None else inspect_sources(examined.graph, SHOWN)
        if examined is not None and not examined.graph.uses_topics:
            return Facts(ClusterDescription({}, {}), time.time(), sources=sources)
        admin, groups = ClusterAdmin(settings), GroupAdmin(settings)
        own = {POSITIONS_TOPIC, TRANSACTIONS_TOPIC}
        topics = own if examined is None else own | topics_of(examined.graph)
        cluster, now = admin.describe(topics), time.time()
        names = [] if examined is None else [reader.group for reader in examined.readers]
        described: Mapping[str, GroupInfo] = {}
        positions: GroupPositions = {}
        logs: Logs = {}
        if names:
            described = self._look("groups", lambda: groups.describe(names), {})
            positions = self._look(POSITIONS, lambda: admin.positions(names), {})
            logs = self._look("the ends of inputs", lambda: self._logs(admin, cluster, positions, now), {})
        tasks, undeclared = self._tasks(cluster, groups)
        others, away = self._others()
        found = self._find(settings, cluster, self._unseen)
        return Facts(
            cluster=cluster,
            now=now,
            logs=logs,
            groups=described,
            positions=positions,
            expired=self._expired(cluster, positions),
            tasks=tasks,
            undeclared=undeclared,
            found=found,
            letters=self._letters(cluster),
            client=client_version(),
            tested_clients=TESTED_CLIENTS,
            unseen=self._unseen,
            others=others,
            away=away,
            sources=sources,
        )

    def _tasks(
        self, cluster: ClusterDescription, groups: GroupAdmin
    ) -> tuple[list[TaskStatus], list[UndeclaredProcessor]]:
        """Returns what the next start does with each task, and the processors that the graph no longer declares."""
        if self._examined is None or not self._examined.graph.groups:
            return [], []
        graph, environment = self._examined.graph, self._environment
        no_tasks, none_gone = list[TaskStatus](), list[UndeclaredProcessor]()
        declared = {topic.name for topic in graph.topics.values() if not topic.cluster}
        tasks = no_tasks
        if declared <= cluster.topics.keys():  # else no worker starts, which is a finding of its own
            tasks = self._look("the next start", lambda: list(read_status(graph, environment, groups)), no_tasks)
        return tasks, self._look("former processors", lambda: find_undeclared(graph, environment, groups), none_gone)

    def _others(self) -> tuple[list[Facts], dict[str, str]]:
        """Returns the facts of the graph's other clusters that answer, and why the rest do not, by name."""
        found, away = list[Facts](), dict[str, str]()
        if self._examined is None:
            return found, away
        graph = self._examined.graph
        for name in clusters_of(graph)[1:]:
            settings, unseen = self._environment.settings.of_cluster(name), dict[str, str]()
            try:
                cluster = ClusterAdmin(settings).describe({TRANSACTIONS_TOPIC, *topics_of(graph, name)})
            except BrokerUnavailable as error:
                away[name] = str(error)
                continue
            transactions, now = self._find(settings, cluster, unseen), time.time()
            found.append(Facts(cluster=cluster, now=now, found=transactions, unseen=unseen, name=name))
        return found, away

    def _find(
        self, settings: Settings, cluster: ClusterDescription, unseen: dict[str, str]
    ) -> Sequence[FoundTransaction]:
        """Returns transactions that hang or have been open for long; notes in `unseen` where it could not look."""
        looked = [name for name in cluster.topics if name != TRANSACTIONS_TOPIC]
        transactions = Transactions(TransactionAdmin(settings))
        found = _look("transactions", lambda: transactions.find(looked, OPEN_SECONDS), Findings([], {}), unseen)
        for tp, reason in found.refused.items():
            unseen[f"transactions of topic {tp.topic}"] = str(reason)
        return found.found

    def _letters(self, cluster: ClusterDescription) -> dict[str, LettersFact]:
        """Returns the dead letters that wait, by topic; a missing topic is another finding."""
        found: dict[str, LettersFact] = {}
        if self._examined is None:
            return found
        counter = LetterCounter(self._examined.graph, self._environment)
        declared = self._examined.graph.topics
        for topic, count in counter.count(COUNT_SECONDS).items():
            if not declared[topic].cluster and topic not in cluster.topics:
                continue
            if count.why:
                self._unseen[f"dead letters in {topic}"] = count.why
            elif count.counted:
                since = self._look(f"dead letters in {topic}", partial(counter.find_oldest, topic), None)
                found[topic] = LettersFact(count.counted, count.is_whole, None if since is None else show_time(since))
        return found

    def _look(self, subject: str, ask: Callable[[], T], otherwise: T) -> T:
        return _look(subject, ask, otherwise, self._unseen)

    def _logs(self, admin: ClusterAdmin, cluster: ClusterDescription, positions: GroupPositions, now: float) -> Logs:
        """Returns the logs of partitions with a position and a leader; `since` covers all and half of retention.ms."""
        wanted: dict[TopicPartition, tuple[int, ...]] = {}
        for tp in {tp for each in positions.values() for tp in each}:
            topic = cluster.topics.get(tp.topic)
            if topic is None or tp.partition >= len(topic.partitions) or topic.partitions[tp.partition].leader < 0:
                continue
            kept = int(topic.settings.get("retention.ms", -1))
            wanted[tp] = tuple(int(now * 1000) - kept // part for part in (1, 2)) if kept >= 0 else ()
        bounded = {name for name, each in cluster.topics.items() if int(each.settings.get("retention.bytes", -1)) >= 0}
        return admin.logs(wanted, bounded & {tp.topic for tp in wanted})

    def _expired(self, cluster: ClusterDescription, positions: GroupPositions) -> dict[str, Positions]:
        """Returns, by processor, the input partitions that it has begun to read and that have no position.

        Each partition is given with its first offset.
        """
        examined, asked = self._examined, self._environment.cluster
        if examined is None or examined.graph.beginnings not in cluster.topics or POSITIONS in self._unseen:
            return {}
        no_topics: dict[str, TopicInfo] = {}
        none_begun: dict[BegunPartition, int] = {}
        topics = self._look("the ids of topics", lambda: asked.topics(list(examined.graph.topics)), no_topics)
        begun = self._look("beginnings", lambda: read_begun(asked, examined.graph.beginnings)[0], none_begun)
        found: dict[str, Positions] = {}
        for processor in examined.graph.processors:
            committed = positions.get(examined.group(processor), {})
            ids = {topic.name: topics[topic.name].topic_id for topic in processor.inputs if topic.name in topics}
            read = [each for each in begun if each.processor == processor.id and ids.get(each.topic) == each.topic_id]
            lost = [tp for each in read if (tp := TopicPartition(each.topic, each.partition)) not in committed]
            if lost:
                starts = self._look("the first offsets of inputs", partial(asked.starts, lost), Positions())
                found[processor.id] = {tp: starts.get(tp, 0) for tp in lost}
        return found


def _look(subject: str, ask: Callable[[], T], otherwise: T, unseen: dict[str, str]) -> T:
    """Returns the answer of `ask`. If it fails, returns `otherwise` and notes the reason in `unseen`."""
    try:
        return ask()
    except KStreamsError as error:
        unseen[subject] = str(error)
        return otherwise
