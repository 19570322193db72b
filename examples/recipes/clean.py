"""Map: one record in, one out. Readings become Celsius, and the name of the sensor becomes the key."""

import kstreams_py as ks

graph = ks.Graph("clean", errors="clean.errors")

raw = graph.topic("readings.raw", value=ks.Json())
clean = graph.topic("readings.clean", key=ks.String(), value=ks.Json())


@graph.map(raw, to=clean)
def convert(reading):
    if reading.get("test"):
        return None  # writes nothing
    celsius = (float(reading["fahrenheit"]) - 32) / 1.8  # a KeyError makes a dead letter
    return ks.Out({"celsius": round(celsius, 1)}, key=reading["sensor"])
