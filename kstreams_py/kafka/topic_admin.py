"""Describes and changes topics, and explains failed calls."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any, Final

import confluent_kafka as ck
from confluent_kafka import admin as ck_admin

from kstreams_py.errors import BrokerUnavailable, KStreamsError, NotAuthorized, Retriable, TopicError
from kstreams_py.kafka.clients import LazyClient, new_client
from kstreams_py.kafka.contact import OPTIONS, SETTING, contacting, no_answer
from kstreams_py.kafka.contracts import TopicInfo
from kstreams_py.kafka.errors import (
    STALE,
    UNAUTHENTICATED,
    UNREACHABLE,
    ClientLog,
    E,
    classify,
    has_no_token,
    name_object,
)
from kstreams_py.kafka.groups import POSITIONS_TOPIC
from kstreams_py.records import TopicPartition

logger = logging.getLogger(__name__)

FIRST_SECONDS: Final = 5.0
"""Seconds after which a second broker is asked to describe topics: a frozen one keeps its connections open."""

SET_HERE: Final = (ck_admin.ConfigSource.DYNAMIC_TOPIC_CONFIG, ck_admin.ConfigSource.DYNAMIC_TOPIC_CONFIG.value)
"""The source of a setting that is set for the topic; the client returns the enum's member or its number."""


class TopicAdmin:
    """An admin client; the first call makes it. See contracts.Cluster for its methods."""

    def __init__(self, configuration: Mapping[str, Any], limit: float, log: ClientLog, name: str = "") -> None:
        """Makes no client yet.

        - `limit`: seconds that each call may take.
        - `log`: watches the client.
        - `name`: the name of another cluster, for errors; "" for the cluster of the inputs.
        """
        self._configuration, self._limit, self._log = configuration, limit, log
        self._address = configuration["bootstrap.servers"]
        self._cluster = f"cluster {name!r}: " if name else ""
        own = f"[clusters.{name}.kafka] or in KSTREAMS_CLUSTERS__{name.upper()}__KAFKA__*"
        self._options = own if name else OPTIONS
        self._setting = f"bootstrap_servers under [clusters.{name}]" if name else SETTING
        self._client = LazyClient(self._make_client)

    def close(self) -> None:
        """Ends the client for good."""
        self._client.close()

    def topics(self, names: Collection[str]) -> dict[str, TopicInfo]:
        if not names:
            return {}
        collection = ck.TopicCollection(sorted(names))
        existing = self._ask(lambda limit: self.client.describe_topics(collection, request_timeout=limit))
        if not existing:
            return {}
        settings = self._ask(lambda limit: self._describe_configs(existing, limit))
        return {
            name: TopicInfo(
                name=name,
                topic_id=str(existing[name].topic_id),
                partitions=len(existing[name].partitions),
                replication=len(existing[name].partitions[0].replicas),
                settings={setting: entry.value for setting, entry in entries.items()},
                own_settings=tuple(sorted(setting for setting, entry in entries.items() if entry.source in SET_HERE)),
            )
            for name, entries in settings.items()
        }

    def _describe_configs(self, names: Iterable[str], limit: float) -> dict[str, Any]:
        resources = [ck_admin.ConfigResource(ck_admin.ResourceType.TOPIC, name) for name in names]
        configs = self.client.describe_configs(resources, request_timeout=limit)
        return {resource.name: future for resource, future in configs.items()}

    def _ask(self, request: Callable[[float], Mapping[str, Any]]) -> dict[str, Any]:
        """Calls `request` with a limit; asks a second broker if the first is frozen. Returns what _known() does."""
        first = min(FIRST_SECONDS, self._limit / 2)
        with contacting(self._address, self._limit):
            try:
                return self._known(request(first), first)
            except (BrokerUnavailable, Retriable) as error:
                if isinstance(error, BrokerUnavailable) and not error.may_return:
                    raise
                logger.debug("no answer from %s within %g s: another broker is asked", self._address, first)
                return self._known(request(self._limit - first), self._limit - first)

    def _known(self, futures: Mapping[str, Any], limit: float) -> dict[str, Any]:
        """Returns the results, without topics unknown to this broker: a new topic reaches brokers one by one."""
        results = {}
        for name, future in futures.items():
            try:
                results[name] = self._wait(future, limit)
            except ck.KafkaException as error:
                if error.args[0].code() != E.UNKNOWN_TOPIC_OR_PART:
                    raise self.explain(error.args[0], topics=[name]) from None
        return results

    def create_topics(self, topics: Iterable[tuple[str, int, int, Mapping[str, str]]]) -> None:
        wanted = [
            ck_admin.NewTopic(name, partitions, replication, config=dict(settings))
            for name, partitions, replication, settings in topics
        ]
        if not wanted:
            return
        for name, future in self.client.create_topics(wanted, request_timeout=self._limit).items():
            try:
                self._wait(future, self._limit)
            except ck.KafkaException as error:
                code = error.args[0].code()
                failure = self.explain(error.args[0], topics=[name])
                if code in UNREACHABLE or code in UNAUTHENTICATED or isinstance(failure, NotAuthorized):
                    raise failure from None
                if code != E.TOPIC_ALREADY_EXISTS:
                    raise TopicError(
                        f"topic {name!r} cannot be created: {error.args[0].str()}: correct "
                        "partitions=, replication= or config= of its declaration, or create it by hand (kafka-topics)"
                    ) from None
        names, deadline = {topic.topic for topic in wanted}, time.monotonic() + self._limit
        while missing := names - self.topics(names).keys():  # brokers learn of them one after the other
            if time.monotonic() > deadline:
                raise TopicError(
                    f"topics {', '.join(sorted(missing))} were created and cannot be seen: see the broker's log"
                )
            time.sleep(0.02)

    def delete_topics(self, names: Collection[str]) -> None:
        if not names:
            return
        for name, future in self.client.delete_topics(sorted(names), request_timeout=self._limit).items():
            try:
                self._wait(future, self._limit)
            except ck.KafkaException as error:
                if error.args[0].code() == E.TOPIC_DELETION_DISABLED:
                    raise TopicError(
                        f"topic {name!r} cannot be deleted: the brokers have delete.topic.enable=false: set it to true"
                    ) from None
                if error.args[0].code() != E.UNKNOWN_TOPIC_OR_PART:
                    raise self.explain(error.args[0], topics=[name]) from None
        deadline = time.monotonic() + self._limit
        while left := self.topics(names):  # brokers learn of it one after the other
            if time.monotonic() > deadline:
                raise TopicError(
                    f"topics {', '.join(sorted(left))} were deleted and are still seen: see the broker's log"
                )
            time.sleep(0.02)

    def grow(self, topic: str, partitions: int) -> None:
        for future in self.client.create_partitions(
            [ck_admin.NewPartitions(topic, partitions)], request_timeout=self._limit
        ).values():
            self._result(future, topics=[topic])
        logger.info("topic %r has %d partitions now", topic, partitions)

    def truncate(self, partition: TopicPartition, before: int) -> None:
        deleted = self.client.delete_records([ck.TopicPartition(*partition, before)], request_timeout=self._limit)
        for future in deleted.values():
            self._result(future, topics=[partition.topic])

    def offsets_retention_minutes(self) -> int | None:
        try:
            # names one topic: the answer for all topics may be large
            brokers = self.client.list_topics(POSITIONS_TOPIC, self._limit).brokers
            resource = ck_admin.ConfigResource(ck_admin.ResourceType.BROKER, str(min(brokers)))
            (described,) = self.client.describe_configs([resource], request_timeout=self._limit).values()
            return int(self._result(described)["offsets.retention.minutes"].value)
        except (ck.KafkaException, KStreamsError, KeyError, ValueError) as error:
            logger.info("cannot read offsets.retention.minutes: %s", error)
            return None

    def _result(self, future: Any, *, topics: Collection[str] = ()) -> Any:
        try:
            return self._wait(future, self._limit)
        except ck.KafkaException as error:
            raise self.explain(error.args[0], topics=topics) from None

    def _wait(self, future: Any, limit: float) -> Any:
        """Returns the result of a request with this limit. Raises Retriable if no answer comes, and KafkaException."""
        try:
            return future.result(limit + 1)  # the request's own limit is shorter, and gives a reason
        except TimeoutError:
            # if another thread has ended the client meanwhile, its requests are never answered (measured)
            raise Retriable(f"no answer from {self._address} within {limit:g} s") from None

    def explain(self, error: ck.KafkaError, *, topics: Collection[str] = (), group: str = "") -> Exception:
        """Returns the exception for a failed call, with the remedy."""
        if error.code() in STALE:
            self._client.end()  # after this error, the client keeps asking the leaders that it knows
            return classify(error, "asking a broker that no longer leads")
        self.client.poll(0)
        cause = self._log.error
        if cause is not None and self._log.refuses(cause):
            return BrokerUnavailable(
                f"{self._cluster}the broker at {self._address} refuses the credentials ({cause.str()}): correct "
                f"security.protocol, sasl.* or ssl.* under {self._options}",
                may_return=False,
            )
        # _DESTROY_BROKER: the broker that was asked is no longer in the metadata, so it is down
        if error.code() in UNREACHABLE | {E._DESTROY, E._DESTROY_BROKER} or has_no_token(error):
            if error.code() != E._DESTROY:  # else another thread has ended the client meanwhile
                self._client.end()  # for minutes it asks a controller that is down, until it reads the metadata again
            newest = f"newest error of a connection: {self._log.connection}" if self._log.connection else ""
            text = no_answer(self._address, newest, self._setting, self._options)
            return BrokerUnavailable(f"{self._cluster}{text}")
        return classify(error, name_object(f"asking the broker at {self._address}", error, topics=topics, group=group))

    @property
    def client(self) -> ck_admin.AdminClient:
        """The client; the first call makes it."""
        return self._client.get()

    def _make_client(self) -> ck_admin.AdminClient:
        settings = {**self._configuration, "error_cb": self._log.on_error}
        try:
            return new_client(ck_admin.AdminClient, settings, self._log)
        except Retriable as error:
            raise BrokerUnavailable(f"{self._cluster}{error}") from None
