import pytest
from ledger import graph, table

from kstreams_py.testing import TestDriver


@pytest.fixture(autouse=True)
def own_directory(tmp_path, monkeypatch):
    monkeypatch.setattr(table, "path", tmp_path / "ledger.db")
    yield
    table.close()


@pytest.mark.parametrize("applied", [True, False], ids=["carried out", "lost"])
def test_crash_between_the_row_and_its_commit_stores_the_row_once(applied):
    with TestDriver(graph) as driver:
        driver.send("entries", {"cents": 500}, key="alice")
        driver.crash("commit_transaction", nth=2, applied=applied)  # the first one records where the group begins
        assert [row[1:] for row in table.rows()] == [("alice", 500)]
        driver.restart()
        driver.send("entries", {"cents": 700}, key="bob")
        driver.run()
        assert sorted(row[1:] for row in table.rows()) == [("alice", 500), ("bob", 700)]
