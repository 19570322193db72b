from compare import graph

from kstreams_py.testing import TestDriver


def test_nth_records_of_both_inputs_meet_whatever_comes_first():
    with TestDriver(graph) as driver:
        for hour, celsius in ((1, 10), (2, 12)):
            driver.send("measurements", {"hour": hour, "celsius": celsius}, key="roof")
        driver.run()
        assert driver.values("differences") == []  # the join waits for the forecasts
        for hour, celsius in ((1, 9), (2, 15)):
            driver.send("forecasts", {"hour": hour, "celsius": celsius}, key="roof")
        driver.run()
        assert driver.values("differences") == [{"hour": 1, "difference": 1}, {"hour": 2, "difference": -3}]


def test_records_of_different_hours_are_a_dead_letter_with_both_inputs():
    with TestDriver(graph) as driver:
        driver.send("forecasts", {"hour": 1, "celsius": 9}, key="roof")
        driver.send("measurements", {"hour": 2, "celsius": 10}, key="roof")
        driver.run()
        (letter,) = driver.dead_letters()
        assert [each["topic"] for each in letter.value["inputs"]] == ["forecasts", "measurements"]
