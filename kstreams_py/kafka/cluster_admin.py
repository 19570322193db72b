"""Requests that describe a cluster as a whole: each asks a broker for everything of one kind."""

from __future__ import annotations

import socket
from collections.abc import Collection, Mapping
from typing import Any, Final

from kstreams_py.kafka.administration import Requests
from kstreams_py.kafka.described_cluster import (
    ClusterDescription,
    GroupPositions,
    LogInfo,
    Logs,
    PartitionInfo,
    Settings,
    TopicDescription,
)
from kstreams_py.records import TopicPartition

CONNECT_SECONDS: Final = 1.0
"""Seconds within which a connection to a broker has to be made."""

EARLIEST: Final = -2
LATEST: Final = -1
"""The codes in ListOffsets for the first and the last offset."""


class ClusterAdmin(Requests):
    """Describes a cluster. Raises the errors of Requests."""

    def describe(self, topics: Collection[str]) -> ClusterDescription:
        """Returns the brokers, and those of the given topics that exist."""

        def ask(client: Any) -> ClusterDescription:
            from kafka import errors  # noqa: PLC0415

            metadata = client._manager.run(client._get_cluster_metadata, sorted(topics))
            known = [each for each in metadata["topics"] if not each["error_code"]]
            denied = errors.TopicAuthorizationFailedError.errno
            hidden = tuple(sorted(each["name"] for each in metadata["topics"] if each["error_code"] == denied))
            addresses = {each["node_id"]: (each["host"], each["port"]) for each in metadata["brokers"]}
            brokers = [number for number, address in addresses.items() if _answers(address)]
            silent = {number: f"{host}:{port}" for number, (host, port) in addresses.items() if number not in brokers}
            settings = _settings(client, brokers, [each["name"] for each in known])
            release = client.get_broker_version_data(brokers[0]).broker_version
            return ClusterDescription(
                {number: settings["broker", str(number)] for number in brokers},
                {each["name"]: _topic(each, settings["topic", each["name"]], silent) for each in known},
                hidden,
                ".".join(map(str, release)),
                silent,
                self._address,
            )

        return self.ask("describing the cluster", "DESCRIBE on the topics", ask)

    def logs(self, partitions: Mapping[TopicPartition, Collection[int]], read: Collection[str] = ()) -> Logs:
        """Returns the logs of partitions. Each partition must have a leader.

        - `partitions`: for each partition, the times to look up, in milliseconds since 1970.
        - `read`: topics whose sizes are requested, too.
        """

        def ask(client: Any) -> Logs:
            starts = _offsets(client, dict.fromkeys(partitions, EARLIEST))
            stable = _offsets(client, dict.fromkeys(partitions, LATEST))
            since: dict[TopicPartition, dict[int, int]] = {tp: {} for tp in partitions}
            for nth in range(max(map(len, partitions.values()), default=0)):
                asked = {tp: sorted(times)[nth] for tp, times in partitions.items() if len(times) > nth}
                for tp, offset in _offsets(client, asked).items():
                    since[tp][asked[tp]] = stable[tp] if offset < 0 else offset
            sizes = _sizes(client, read) if read else {}
            return {tp: LogInfo(starts[tp], stable[tp], since[tp], sizes.get(tp)) for tp in partitions}

        return self.ask("reading the ends of partitions", "DESCRIBE on the topics", ask) if partitions else {}

    def positions(self, groups: Collection[str]) -> GroupPositions:
        """Returns the committed offsets of groups, including offsets that a transaction is about to replace."""

        def ask(client: Any) -> GroupPositions:
            found = client.list_group_offsets(dict.fromkeys(groups))
            return {
                group: {TopicPartition(tp.topic, tp.partition): at.offset for tp, at in each.items() if at.offset >= 0}
                for group, each in found.items()
            }

        return self.ask("reading the positions of groups", "DESCRIBE on the groups and their topics", ask)


def _answers(address: tuple[str, int]) -> bool:
    """Returns whether a connection can be made: kafka-python spends its whole limit on retries if a broker is down."""
    try:
        with socket.create_connection(address, CONNECT_SECONDS):
            return True
    except OSError:
        return False


def _topic(found: Mapping[str, Any], settings: Settings, silent: Collection[int]) -> TopicDescription:
    partitions = sorted(found["partitions"], key=lambda each: each["partition_index"])
    return TopicDescription(
        found["name"],
        tuple(
            PartitionInfo(
                -1 if each["leader_id"] in silent else each["leader_id"],
                len(each["replica_nodes"]),
                len({*each["isr_nodes"]}.difference(silent)),
            )
            for each in partitions
        ),
        settings,
    )


def _settings(client: Any, brokers: Collection[int], topics: Collection[str]) -> dict[tuple[str, str], Settings]:
    """Returns the settings of brokers and topics; none where this user may not see them: kafka-python omits them."""
    from kafka.admin import ConfigResource, ConfigResourceType  # noqa: PLC0415

    wanted = [ConfigResource(ConfigResourceType.BROKER, str(number)) for number in brokers]
    wanted += [ConfigResource(ConfigResourceType.TOPIC, name) for name in topics]
    found = client.describe_configs(wanted, config_filter="all")
    return {
        (kind, name): {setting: str(entry["value"]) for setting, entry in found.get(kind, {}).get(name, {}).items()}
        for kind, names in (("broker", map(str, brokers)), ("topic", topics))
        for name in names
    }


def _offsets(client: Any, asked: Mapping[TopicPartition, int]) -> dict[TopicPartition, int]:
    from kafka import TopicPartition as Place  # noqa: PLC0415

    if not asked:
        return {}
    found = client.list_partition_offsets(
        {Place(*tp): at for tp, at in asked.items()}, isolation_level="read_committed"
    )
    return {TopicPartition(tp.topic, tp.partition): at.offset for tp, at in found.items()}


def _sizes(client: Any, topics: Collection[str]) -> dict[TopicPartition, int]:
    """Returns the bytes of the largest replica of each partition; nothing without DESCRIBE on the cluster."""
    found: dict[TopicPartition, int] = {}
    for broker in client.describe_log_dirs(sorted(topics)):
        for directory in broker["log_dirs"]:
            for topic in directory["topics"]:
                for each in topic["partitions"]:
                    tp = TopicPartition(topic["name"], each["partition_index"])
                    found[tp] = max(found.get(tp, 0), each["partition_size"])
    return found
