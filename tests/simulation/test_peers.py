"""Whole clusters of peers: every effect once, nothing lost, whatever dies, freezes or goes away."""

from __future__ import annotations

from typing import Any

import pytest

from kstreams_py.jobs.cluster.state import JobPhase
from kstreams_py.sources.suspects import DEATHS_MAX
from tests.simulation.clusters import ClusterPlant
from tests.simulation.test_jobs import GRAPHS, INPUTS


def plant_of(graph: str, **options: Any) -> ClusterPlant:
    plant = ClusterPlant(range(INPUTS), **options)
    plant.tables, plant.rows_of = GRAPHS[graph](plant)
    return plant


@pytest.mark.parametrize("graph", GRAPHS)
def test_peers_run_a_job_to_its_end(graph: str) -> None:
    plant = plant_of(graph)
    plant.begin(6)
    plant.finish_job()


@pytest.mark.parametrize("graph", GRAPHS)
def test_several_peers_of_each_task_run_a_job_to_its_end(graph: str) -> None:
    plant = plant_of(graph)
    plant.begin(13)
    plant.finish_job()


def run_with_faults(graph: str, seeds: range) -> None:
    """Runs a graph by peers that die, freeze and join, for each seed."""
    for seed in seeds:
        plant = plant_of(graph, seed=seed)
        chance = plant.chance
        plant.begin(chance.randint(6, 10))
        ends = DEATHS_MAX - 1  # one more, and an input that was at each of these peers would rightly be refused
        while not plant.has_ended and ends:
            plant.run_for(chance.choice([0.1, 0.5, 2]))
            names = [*plant.peers]
            match chance.randrange(6):
                case 0 if len(names) > 2:
                    ends -= 1
                    plant._orphan()
                    plant.die_now(chance.choice(names), is_seen=chance.random() < 0.7)
                case 1:
                    ends -= 1
                    plant._orphan()
                    plant.frozen[chance.choice(names)] = plant.now + chance.choice([1, 8, 20])
                case 2 | 3 if len(names) < 12:
                    plant.add()
                case 4:
                    plant.log.is_away = not plant.log.is_away
        plant.log.is_away = False
        while len(plant.peers) < 8:
            plant.add()
        plant.finish_job()


@pytest.mark.parametrize("graph", GRAPHS)
@pytest.mark.parametrize("seeds", [range(3), pytest.param(range(3, 60), marks=pytest.mark.long)], ids=len)
def test_peers_that_die_freeze_and_join_leave_each_effect_once(graph: str, seeds: range) -> None:
    run_with_faults(graph, seeds)


def test_inputs_that_a_dead_peer_had_are_read_again_and_no_others() -> None:
    plant = plant_of("chain")
    plant.begin(6)
    plant.run_until(lambda: plant.job is not None and plant.job.phase is JobPhase.RUNNING)
    name = plant.find("parse")
    assert name is not None
    plant.frozen[name] = 100.0
    plant.run_for(1)
    unstored = {*range(INPUTS)} - {value - 1 for value in plant.tables[0].values}
    assert {*plant.reads} == {*range(INPUTS)}
    assert 0 < len(unstored) < INPUTS, "the other peer of the task goes on"
    plant._orphan()
    plant.die_now(name)
    plant.finish_job()
    assert plant.replayed == dict.fromkeys(unstored, 1)
