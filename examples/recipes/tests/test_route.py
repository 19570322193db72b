from route import graph

from kstreams_py.testing import TestDriver


def test_large_payment_is_held_and_each_is_audited():
    with TestDriver(graph) as driver:
        driver.send("payments", {"cents": 500}, key="small")
        driver.send("payments", {"cents": 2_000_000}, key="large")
        driver.run()
        assert [each.key for each in driver.read("payments.accepted")] == ["small"]
        assert [each.key for each in driver.read("payments.held")] == ["large"]
        assert driver.values("payments.audit") == [
            {"cents": 500, "topic": "payments.accepted"},
            {"cents": 2_000_000, "topic": "payments.held"},
        ]
