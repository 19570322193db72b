import sqlite3
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread

import enrich
import pytest

import kstreams_py as ks

CENTS = {"/prices/bolt": b"20", "/prices/nut": b"10"}


class Prices(BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200 if self.path in CENTS else 404)
        self.end_headers()
        self.wfile.write(CENTS.get(self.path, b""))

    def log_message(self, *_):
        pass


@pytest.fixture(autouse=True)
def service(monkeypatch):
    with ThreadingHTTPServer(("127.0.0.1", 0), Prices) as server:
        Thread(target=server.serve_forever).start()
        monkeypatch.setattr(enrich, "SERVICE", f"127.0.0.1:{server.server_port}")
        yield
        server.shutdown()


def run_sql(path, statement):
    connection = sqlite3.connect(path)
    with connection:
        rows = connection.execute(statement).fetchall()
    connection.close()
    return rows


def run_graph():
    ks.start(enrich.graph).wait()  # until all rows are done


def test_row_is_priced_once_and_one_without_a_price_is_refused(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    run_sql("shop.db", "CREATE TABLE orders (id INTEGER PRIMARY KEY, item TEXT, quantity INTEGER)")
    run_sql("shop.db", "INSERT INTO orders VALUES (1, 'bolt', 10), (2, 'nut', 5), (3, 'gear', 1)")
    run_graph()
    run_sql("shop.db", "INSERT INTO orders VALUES (4, 'nut', 1)")
    run_graph()
    rows = run_sql("priced.db", "SELECT id, item, cents FROM priced ORDER BY id")
    assert rows == [(1, "bolt", 200), (2, "nut", 50), (4, "nut", 10)]
    refused = run_sql("shop.db", "SELECT key, reason FROM kstreams_claims WHERE state = 3")
    assert refused == [(3, "price: LookupError: no price of 'gear': status 404")]
