"""What only kafka-python can ask of a cluster: it lists and removes the static members of consumer groups.

confluent-kafka cannot remove a static member. kafka-python is imported by the first request and not before: that takes
0.3 s, and no worker that starts needs it.
"""

from __future__ import annotations

import re
import sys
import threading
import time
import warnings
from collections.abc import Callable, Collection, Mapping
from typing import Any, Final, TypeVar

from kstreams_py.config import Settings
from kstreams_py.errors import BrokerUnavailable, Fatal, SettingsError
from kstreams_py.groups import GroupInfo, Member
from kstreams_py.record import TopicPartition

T = TypeVar("T")

ATTEMPTS: Final = 3
"""Of a request, each with a client of its own: an address that does not answer takes no more than its share."""

PAUSE_SECONDS: Final = 0.1
"""Between two attempts: a coordinator that moves or loads is there a moment later."""

_NAMES: Final[Mapping[str, str]] = {
    "sasl.mechanism": "sasl_mechanism",
    "sasl.mechanisms": "sasl_mechanism",
    "sasl.username": "sasl_plain_username",
    "sasl.password": "sasl_plain_password",
    "sasl.kerberos.service.name": "sasl_kerberos_service_name",
    "ssl.ca.location": "ssl_cafile",
    "ssl.certificate.location": "ssl_certfile",
    "ssl.key.location": "ssl_keyfile",
    "ssl.key.password": "ssl_password",
    "ssl.crl.location": "ssl_crlfile",
}
"""librdkafka's name of a setting to kafka-python's, where the value is the same."""

_MECHANISMS: Final = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", "GSSAPI")
_SECURITY: Final = re.compile(r"(sasl|ssl|security|https|enable\.ssl|enable\.sasl)\b")


def connection(settings: Settings) -> dict[str, Any]:
    """kafka-python's settings for the same brokers and credentials as librdkafka's.

    Raises SettingsError for a setting of security that has no counterpart: a client without it would be another client.
    """
    found: dict[str, Any] = {"bootstrap_servers": [part.strip() for part in settings.bootstrap_servers.split(",")]}
    for name, value in settings.kafka.items():
        if name in _NAMES:
            found[_NAMES[name]] = value
        elif name == "security.protocol":
            found["security_protocol"] = value.upper()
        elif name == "ssl.endpoint.identification.algorithm":
            found["ssl_check_hostname"] = value.lower() != "none"
        elif _SECURITY.match(name):
            raise _no_counterpart(name)
    if found.get("sasl_mechanism", _MECHANISMS[0]) not in _MECHANISMS:
        raise _no_counterpart(f"sasl.mechanism={found['sasl_mechanism']}")
    return found


def _no_counterpart(name: str) -> SettingsError:
    return SettingsError(
        f"{name} has no counterpart in kafka-python, which removes members from groups (`--leave`, leave_on_stop, "
        f"`kstreams slots`): use security.protocol, ssl.endpoint.identification.algorithm, sasl.mechanism "
        f"({', '.join(_MECHANISMS)}) and {', '.join(sorted(_NAMES))}, or do without"
    )


class GroupAdmin:
    """Requests about groups, none of which takes longer than `limit` seconds (settings: request_timeout_ms).

    All raise BrokerUnavailable if no broker answers in time or one refuses, Fatal for what is not expected.
    """

    def __init__(self, settings: Settings, limit: float | None = None) -> None:
        self._connection = connection(settings)
        self._address = settings.bootstrap_servers
        self._limit = limit or settings.request_timeout_ms / 1000

    def describe(self, groups: Collection[str]) -> dict[str, GroupInfo]:
        """The groups with their members; one that does not exist is "Dead" and has none."""

        def ask(client: Any) -> dict[str, GroupInfo]:
            found = client.describe_groups(list(groups))
            return {group: _group_info(found[group]) for group in groups}

        return self._ask(f"describing {_named(groups)}", ask)

    def members(self, group: str) -> tuple[Member, ...]:
        """The members of one group."""
        return self.describe([group])[group].members

    def remove(self, group: str, members: Mapping[str, str]) -> dict[str, bool]:
        """Removes static members (group.instance.id to member id), and returns whether each was there.

        A member id must be the one that holds the instance id now, or the member stays: the coordinator compares them.
        With an empty member id, whoever holds the instance id is removed.
        """

        def ask(client: Any) -> dict[str, bool]:
            from kafka import errors  # noqa: PLC0415
            from kafka.admin import MemberToRemove  # noqa: PLC0415

            asked = [
                MemberToRemove(member_id=member_id or None, group_instance_id=instance)
                for instance, member_id in members.items()
            ]
            answers = client.remove_group_members(group, asked)
            found = {instance: answers[member_id or instance] for instance, member_id in members.items()}
            for error in found.values():
                if error not in (errors.NoError, errors.UnknownMemberIdError, errors.FencedInstanceIdError):
                    raise error
            return {instance: error is errors.NoError for instance, error in found.items()}

        return self._ask(f"removing members of group {group!r}", ask) if members else {}

    def _ask(self, doing: str, call: Callable[[Any], T]) -> T:
        """The answer to a request, in a thread of its own that is left behind if it outlasts the limit."""
        if "kafka.admin" not in sys.modules:
            with warnings.catch_warnings(action="ignore"):  # its import uses what Python has deprecated
                import kafka.admin  # noqa: F401, PLC0415
        from kafka import errors  # noqa: PLC0415

        answers: list[T] = []
        failures: list[Exception] = []
        deadline = time.monotonic() + self._limit

        def run() -> None:
            try:
                answers.append(self._attempt(call, deadline))
            except Exception as error:
                failures.append(error)

        thread = threading.Thread(target=run, name=doing, daemon=True)
        thread.start()
        thread.join(self._limit)
        for error in failures:
            raise self._explain(error, doing) if isinstance(error, errors.KafkaError) else error from None
        if not answers:
            raise self._unanswered(doing)
        return answers[0]

    def _attempt(self, call: Callable[[Any], T], deadline: float) -> T:
        """One request with a new client, again as long as it fails as retriable."""
        from kafka import errors  # noqa: PLC0415
        from kafka.admin import KafkaAdminClient  # noqa: PLC0415

        share = self._limit / ATTEMPTS
        while True:
            limit = max(1, int(min(share, deadline - time.monotonic() - PAUSE_SECONDS) * 1000))
            client: Any = KafkaAdminClient.__new__(KafkaAdminClient)
            try:
                client.__init__(**self._connection, bootstrap_timeout_ms=limit, request_timeout_ms=limit)
                return call(client)
            except errors.KafkaError as error:
                if not error.retriable or time.monotonic() + 2 * PAUSE_SECONDS > deadline:
                    raise
            finally:
                client._closed = False  # one that found no broker was never opened, but its thread runs
                client.close()
            time.sleep(PAUSE_SECONDS)

    def _explain(self, error: Any, doing: str) -> Exception:
        """An error of kafka-python as the message a person needs."""
        from kafka import errors  # noqa: PLC0415

        if isinstance(error, errors.AuthorizationError):
            return BrokerUnavailable(
                f"{doing}: the broker at {self._address} does not allow it ({error}): grant its user DESCRIBE and READ "
                "on the group"
            )
        return self._unanswered(f"{doing} ({error})") if error.retriable else Fatal(f"{doing}: {error}")

    def _unanswered(self, doing: str) -> BrokerUnavailable:
        return BrokerUnavailable(
            f"{doing}: no broker at {self._address} answers within {self._limit:g} s: start one, correct "
            "--bootstrap-servers / KSTREAMS_BOOTSTRAP_SERVERS, or correct the credentials (sasl.*, ssl.*)"
        )


def _named(groups: Collection[str]) -> str:
    return "groups " + ", ".join(map(repr, groups))


def _group_info(found: Mapping[str, Any]) -> GroupInfo:
    """A group as kafka-python describes it. Raises kafka-python's error for one that cannot be described."""
    from kafka import errors  # noqa: PLC0415

    if found["error"] is not None:
        code = re.match(r"\[Error (-?\d+)\]", found["error"])
        kind = errors.for_code(int(code[1])) if code else errors.UnknownError
        if kind is not errors.GroupIdNotFoundError:
            raise kind(found["error"])
    members = (
        Member(
            instance=member["group_instance_id"] or "",
            member_id=member["member_id"],
            client_id=member["client_id"],
            host=member["client_host"].removeprefix("/"),
            partitions=_partitions(member["member_assignment"]),
        )
        for member in found["members"]
    )
    return GroupInfo(
        found["group_state"], tuple(sorted(members, key=lambda member: (member.instance, member.member_id)))
    )


def _partitions(assignment: Any) -> tuple[TopicPartition, ...]:
    """A member's partitions; while its group rebalances it has none."""
    assigned = assignment["assigned_partitions"] if isinstance(assignment, Mapping) else ()
    return tuple(sorted(TopicPartition(each["topic"], number) for each in assigned for number in each["partitions"]))
