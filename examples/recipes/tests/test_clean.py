from clean import graph

from kstreams_py.testing import TestDriver


def test_reading_is_converted_and_keyed_by_its_sensor():
    with TestDriver(graph) as driver:
        driver.send("readings.raw", {"sensor": "roof", "fahrenheit": "68"})
        driver.send("readings.raw", {"sensor": "roof", "fahrenheit": "0", "test": True})
        driver.run()
        assert [(each.key, each.value) for each in driver.read("readings.clean")] == [("roof", {"celsius": 20.0})]


def test_reading_without_a_temperature_is_a_dead_letter():
    with TestDriver(graph) as driver:
        driver.send("readings.raw", {"sensor": "roof"})
        driver.run()
        assert driver.values("readings.clean") == []
        (letter,) = driver.dead_letters()
        assert letter.value["exception_class"] == "builtins.KeyError"
