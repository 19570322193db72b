import sqlite3

from accept import graph

import kstreams_py as ks


def run_sql(path, statement):
    connection = sqlite3.connect(path)
    with connection:
        rows = connection.execute(statement).fetchall()
    connection.close()
    return rows


def test_order_is_accepted_if_both_checks_say_so(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    run_sql("shop.db", "CREATE TABLE orders (id INTEGER PRIMARY KEY, customer TEXT, quantity INTEGER)")
    run_sql("shop.db", "INSERT INTO orders VALUES (1, 'alice', 10), (2, 'mallory', 10), (3, 'bob', 1000)")
    ks.start(graph).wait()  # until all rows are done
    decided = run_sql("decided.db", "SELECT id, decision FROM decided ORDER BY id")
    assert decided == [(1, "accepted"), (2, "refused"), (3, "refused")]
