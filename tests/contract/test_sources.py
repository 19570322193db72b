"""What every source does: claims, acknowledgements, and what becomes of the claims of the dead."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import pytest

from kstreams_py.errors import SettingsError
from kstreams_py.graph.source import InspectedSource, RefusedInput, SourceConnection, SourceStatus
from kstreams_py.sources.suspects import DEATHS_MAX, DELETED, REASON
from tests.contract.source_media import LEASE, READER, InFiles, InMemory, InPostgreSQL, InSQLite, Medium

MEDIA: dict[str, Callable[..., Medium]] = {
    "memory": lambda *_: InMemory(),
    "sqlite": InSQLite,
    "files": InFiles,
    "postgresql": InPostgreSQL,
}

SERVERS = {"postgresql"}
"""The media that have a server, which is the fixture of the same name."""


@pytest.fixture(params=MEDIA)
def medium(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Medium]:
    servers = [request.getfixturevalue(request.param)] if request.param in SERVERS else []
    with closing(MEDIA[request.param](tmp_path, monkeypatch, *servers)) as found:
        yield found


def read(connection: SourceConnection, limit: int = 100, *, alone: bool = True) -> list[int]:
    """Claims inputs, and returns their numbers."""
    return [claim.value["id"] for claim in connection.read(limit, alone=alone)]


def read_attempts(connection: SourceConnection) -> list[tuple[int, int]]:
    """Claims inputs, and returns their numbers and attempts."""
    return [(claim.value["id"], claim.attempts) for claim in connection.read(100, alone=True)]


def test_inputs_are_read_once_whole_and_in_the_order_of_their_keys(medium: Medium) -> None:
    medium.insert(2, 1, 3)
    connection = medium.open()
    first, second = connection.read(2, alone=True)
    assert (first.value, first.attempts) == ({"id": 1, "item": "item 1"}, 0)
    assert (second.value["id"], read(connection), read(connection)) == (2, [3], [])
    assert first.key != second.key


def test_acknowledged_inputs_are_never_read_again_by_any_connection(medium: Medium) -> None:
    medium.insert(1, 2)
    connection = medium.open()
    connection.ack(connection.read(1, alone=True))
    connection.give_back(connection.read(1, alone=True), failed=False)
    medium.wait(2 * LEASE)
    assert read(medium.open()) == [2]


def test_two_readers_of_one_graph_share_the_inputs_and_another_graph_gets_all(medium: Medium) -> None:
    medium.insert(*range(6))
    one, other, another_graph = medium.open(), medium.open(), medium.open("books.orders")
    assert (read(one, 2), read(other, 2), read(one), read(other)) == ([0, 1], [2, 3], [4, 5], [])
    assert read(another_graph) == [*range(6)]


def test_inputs_that_come_later_are_read_also_those_with_a_lower_key(medium: Medium) -> None:
    medium.insert(10)
    connection = medium.open()
    assert (read(connection), read(connection)) == ([10], [])
    medium.insert(5, 20)
    medium.wait(1)
    assert read(connection) == [5, 20]


def test_claims_of_a_silent_reader_are_taken_over_after_their_lease(medium: Medium) -> None:
    medium.insert(1, 2, 3)
    dead, living = medium.open(), medium.open()
    claims = dead.read(100, alone=True)
    medium.wait(LEASE - 1)
    assert read(living) == []
    medium.wait(LEASE / 2)
    again = [(claim.value["id"], claim.attempts, claim.taken_over) for claim in living.read(100, alone=True)]
    assert again == [(1, 1, True), (2, 1, True), (3, 1, True)]
    dead.ack(claims[:2])  # it was only frozen: its claims are no longer its own
    dead.give_back(claims[2:], failed=True)
    assert read(living) == []
    medium.wait(2 * LEASE)
    assert read_attempts(medium.open()) == [(1, 2), (2, 2), (3, 2)]


def test_claims_of_a_reader_that_keeps_them_stay_its_own(medium: Medium) -> None:
    medium.insert(1)
    slow, other = medium.open(), medium.open()
    claims = slow.read(100, alone=True)
    for _ in range(4):
        medium.wait(LEASE * 0.9)
        slow.keep()
        assert read(other) == []
    slow.ack(claims)
    medium.wait(2 * LEASE)
    assert read(other) == []


@pytest.mark.parametrize("seconds", [-86_400, 86_400], ids="{:+}".format)
def test_time_of_day_that_jumps_ends_no_lease_and_keeps_none(medium: Medium, seconds: int) -> None:
    medium.insert(1, 2, 3)
    dead, living, other = medium.open(), medium.open(), medium.open()
    assert read(dead, 1) == [1]
    kept = living.read(1, alone=True)
    medium.ahead += seconds
    assert read(other) == [3], "the claims of others are theirs"
    medium.wait(LEASE * 0.9)
    living.keep()
    other.keep()
    medium.wait(LEASE / 2)
    again = other.read(100, alone=True)
    assert [(claim.value["id"], claim.attempts, claim.taken_over) for claim in again] == [(1, 1, True)]
    medium.ahead -= seconds
    living.ack(kept)
    other.ack(again)
    medium.wait(2 * LEASE)
    assert read(medium.open()) == [3], "it was not acknowledged"


@pytest.mark.parametrize(("failed", "attempts"), [(False, 0), (True, 1)])
def test_inputs_that_are_given_back_are_read_again_at_once(medium: Medium, *, failed: bool, attempts: int) -> None:
    medium.insert(1)
    connection = medium.open()
    connection.give_back(connection.read(100, alone=True), failed=failed)
    assert read_attempts(connection) == [(1, attempts)]


def test_refused_inputs_are_not_read_again_and_their_reason_is_kept(medium: Medium) -> None:
    medium.insert(1, 2)
    connection = medium.open()
    first, second = connection.read(100, alone=True)
    connection.refuse([(first, "parse: ValueError: no number")])
    connection.ack([second])
    medium.wait(2 * LEASE)
    assert read(medium.open()) == []
    assert medium.refused() == [(1, "parse: ValueError: no number")]


def deaths(medium: Medium, poison: int) -> list[list[int]]:
    """Runs readers until nothing is left; each that reads `poison` dies. Returns what was under way at each death."""
    died: list[list[int]] = []
    for _ in range(100_000):
        connection = medium.open()
        while claims := connection.read(10_000, alone=True):
            if poison in (numbers := [claim.value["id"] for claim in claims]):
                died.append(numbers)
                break
            connection.ack(claims)
        else:
            return died
        medium.wait(2 * LEASE)
    raise AssertionError("it does not end")


def test_input_that_ends_its_workers_is_refused_and_all_others_are_read(medium: Medium) -> None:
    medium.insert(*range(5_000))
    died = deaths(medium, poison=1_234)
    assert [len(each) for each in died] == [5_000, 5_000, 100, 1, 1]
    assert len(died) == DEATHS_MAX
    assert medium.refused() == [(1_234, REASON)]


def test_suspects_wait_until_nothing_else_is_under_way(medium: Medium) -> None:
    medium.insert(*range(10))
    for _ in range(2):
        medium.open().read(10, alone=True)
        medium.wait(2 * LEASE)
    medium.insert(10)
    connection = medium.open()
    assert (read(connection, alone=False), connection.waits_alone) == ([], True)
    claims = connection.read(100, alone=True)
    assert [claim.value["id"] for claim in claims] == [*range(10)]
    source = medium.source()
    assert isinstance(source, InspectedSource)
    assert source.inspect(READER, 0) == SourceStatus(claimed=10, claimed_suspects=10)
    connection.ack(claims)
    assert (read(connection), connection.waits_alone) == ([10], False)


def test_source_that_ends_is_exhausted_once_every_input_is_acknowledged(medium: Medium) -> None:
    medium.insert(1)
    connection, other = medium.open(ends=True), medium.open(ends=True)
    claims = connection.read(100, alone=True)
    medium.wait(1)
    assert (read(other), other.is_exhausted) == ([], False)
    connection.ack(claims)
    medium.wait(1)
    assert (read(other), other.is_exhausted) == ([], True)


def test_source_that_does_not_end_is_never_exhausted(medium: Medium) -> None:
    connection = medium.open()
    assert (read(connection), connection.is_exhausted) == ([], False)


def test_input_that_was_deleted_after_a_death_is_given_up_with_the_reason(medium: Medium) -> None:
    medium.insert(1)
    medium.open().read(100, alone=True)
    medium.delete()
    medium.wait(2 * LEASE)
    connection = medium.open()
    assert (read(connection), connection.refused) == ([], 1)
    assert medium.refused() == [(1, DELETED)]


def test_claims_are_inspected_without_a_change_of_them(medium: Medium) -> None:
    medium.insert(*range(7))
    source = medium.source()
    assert isinstance(source, InspectedSource)
    assert source.inspect(READER, 5) == SourceStatus()
    medium.open().read(2, alone=True)
    medium.wait(2 * LEASE)
    medium.open().read(2, alone=True)  # at its death, it is the second of these inputs
    living = medium.open()
    _, third, fourth, fifth = living.read(4, alone=True)
    living.refuse([(third, "parse: ValueError: no 3"), (fourth, "parse: ValueError: no 4")])
    living.give_back([fifth], failed=False)
    medium.wait(LEASE * 0.9)
    living.keep()
    medium.wait(LEASE * 0.6)
    shown = tuple(RefusedInput(medium.key_of(number), 0, f"parse: ValueError: no {number}") for number in (4, 3))
    expected = SourceStatus(free=1, claimed=1, abandoned=2, suspects=2, refused=2, shown=shown)
    assert source.inspect(READER, 5) == expected
    assert source.inspect(READER, 1) == expected._replace(shown=shown[:1])
    assert source.inspect("another.graph", 5) == SourceStatus()


def test_refused_inputs_are_read_again_as_if_they_were_new(medium: Medium) -> None:
    medium.insert(0, 1, 2)
    source, connection = medium.source(), medium.open()
    assert isinstance(source, InspectedSource)
    connection.refuse([(claim, "no") for claim in connection.read(100, alone=True)])
    with pytest.raises(SettingsError, match="no input with the key 7 is refused: `kstreams sources list` has the keys"):
        source.retry(READER, [medium.key_of(1), "7"])
    assert (source.retry(READER, [medium.key_of(1)]), source.inspect(READER, 0)) == (1, SourceStatus(free=1, refused=2))
    medium.wait(LEASE)
    claims = connection.read(100, alone=True)
    assert [(claim.value["id"], claim.attempts, claim.taken_over) for claim in claims] == [(1, 0, False)]
    assert (source.retry(READER, None), source.inspect(READER, 9)) == (2, SourceStatus(free=2, claimed=1))
