"""Creates the framework's own topics, and checks the settings of topics."""

from __future__ import annotations

from collections.abc import Mapping

from kstreams_py.errors import TopicError
from kstreams_py.kafka.contracts import Cluster, TopicInfo


def ensure_topics(cluster: Cluster, wanted: Mapping[str, tuple[int, Mapping[str, str]]]) -> list[str]:
    """Creates the framework's own topics that are missing, and adds partitions to topics that have too few.

    `wanted`: partitions and settings by name. Returns the names of the created topics. Raises TopicError for settings
    that differ.
    """
    existing = check_own_topics(cluster, wanted)
    missing = [name for name in wanted if name not in existing]
    cluster.create_topics((name, *wanted[name][:1], -1, wanted[name][1]) for name in missing)
    for name, info in existing.items():
        if info.partitions < wanted[name][0]:
            cluster.grow(name, wanted[name][0])
    return missing


def check_own_topics(cluster: Cluster, wanted: Mapping[str, tuple[int, Mapping[str, str]]]) -> dict[str, TopicInfo]:
    """Returns the wanted topics that exist. Raises TopicError for settings that differ."""
    existing = cluster.topics(list(wanted))
    for name, info in existing.items():
        check_settings(info, wanted[name][1])
    return existing


def check_settings(info: TopicInfo, wanted: Mapping[str, str]) -> None:
    """Raises TopicError for a setting that differs, with the command that changes it."""
    for setting, value in wanted.items():
        if (actual := info.settings.get(setting)) != str(value):
            raise TopicError(
                f"topic {info.name!r} has {setting}={actual} and needs {value}: "
                f"run kafka-configs --alter --topic {info.name} --add-config {setting}={value}"
            )
