"""Deaths of the records of a partition: counted beside the committed offset."""

from __future__ import annotations

import random

import pytest

from kstreams_py.jobs.topic_deaths import PAIRS_MAX, Deaths, add_death, deaths_of, pass_by, read_deaths, write_deaths


@pytest.mark.parametrize("seed", range(20))
def test_deaths_are_those_of_a_list_of_all_records_and_outlive_their_text(seed: int) -> None:
    chance, expected = random.Random(seed), [0] * 30
    deaths: Deaths = ()
    for _ in range(12):
        start, stop = sorted(chance.choices(range(31), k=2))
        counts = chance.sample(range(5), 3)
        deaths = read_deaths(write_deaths(add_death(deaths, start, stop, counts)))
        expected = [n + (start <= at < stop and n in counts) for at, n in enumerate(expected)]
        assert [deaths_of(pass_by(deaths, 4), at) for at in range(4, 40)] == [*expected[4:], *[0] * 10]


@pytest.mark.parametrize("text", ["", "other", "deaths", "deaths 5:1 5:2", "deaths 9:1 5:2", "deaths ٣:1"])
def test_text_that_was_not_written_here_counts_no_death(text: str) -> None:
    assert read_deaths(text) == ()


def test_text_stays_small_and_forgets_deaths_rather_than_adding_some() -> None:
    many = tuple((10**12 + end, end % 2 + 1) for end in range(10_000))
    assert read_deaths(write_deaths(many)) == many[:PAIRS_MAX]
    assert len(write_deaths(many)) < 1_000
