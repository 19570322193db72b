"""Peers whose broker, which has the log of their cluster, is away while a job runs."""

from __future__ import annotations

import signal
import time
from functools import partial
from pathlib import Path
from typing import Final

import pytest

from kstreams_py import Settings
from kstreams_py.embedded import EmbeddedKafka
from kstreams_py.graph.loading import load
from kstreams_py.jobs.cluster.kafka_log import read_replica
from kstreams_py.kafka.cluster import KafkaCluster
from kstreams_py.operations.clusters import submit_job
from tests.system.command import command, kstreams
from tests.system.harness import wait_until
from tests.system.test_jobs import Shop

AWAY: Final = 30.0
"""Seconds: five times as long as a peer may be silent."""


@pytest.mark.long  # in the quick tier, simulation/test_memberships.py: a log in memory is away
@pytest.mark.parametrize(("end", "begin"), [("pause", "resume"), ("kill", "restart")])
def test_log_that_is_away_for_long_while_a_job_runs_changes_nothing(
    own_broker: EmbeddedKafka, name: str, tmp_path: Path, end: str, begin: str
) -> None:
    settings = Settings.load(bootstrap_servers=own_broker.bootstrap_servers, schema_directory=tmp_path)
    rows, environment, kafka = 1_000, settings.as_environment(), KafkaCluster(settings)
    shop, status = Shop(tmp_path, rows=rows, seconds=0.02, ends=False), ("cluster", "status", "--cluster", name)
    peers = ("peer", "--cluster", name, "--allow", shop.file, "--workers", 5)
    with command(tmp_path, *peers, environment=environment) as running:
        wait_until(lambda: ": 5 peers," in kstreams(*status, environment=environment).out, "all have joined", pause=0.5)
        job = submit_job(kafka, name, load(str(shop.file)), None)
        wait_until(lambda: len(read_replica(kafka, name).jobs[job].ready) == 5, "all are ready", pause=0.5)
        wait_until(partial(shop.has_stored, 50), "rows are stored")
        before = read_replica(kafka, name)
        getattr(own_broker, end)(0)
        time.sleep(AWAY / 2)
        stored = shop.stored()
        time.sleep(AWAY / 2)
        assert shop.stored() == stored < rows - 1, "peers do not act without their log"
        getattr(own_broker, begin)(0)
        done = "SELECT count(*) FROM kstreams_claims WHERE state > 1"
        wait_until(lambda: shop.run_sql(done) == [(rows,)], "all rows are done")
        after = read_replica(kafka, name)
        running.send(signal.SIGTERM)
        assert running.wait() == 0, running.text
    kafka.close()
    assert [*after.peers] == [*before.peers]
    assert (after.assignments, after.jobs, after.deaths) == (before.assignments, before.jobs, 0)
    shop.check(rows)
