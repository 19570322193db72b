"""Join: one record of each input in step. The nth forecast of a partition is compared with its nth measurement."""

import kstreams_py as ks

graph = ks.Graph("compare", errors="compare.errors")

forecasts = graph.topic("forecasts", key=ks.String(), value=ks.Json())
measurements = graph.topic("measurements", key=ks.String(), value=ks.Json())
differences = graph.topic("differences", key=ks.String(), value=ks.Json())


@graph.join(forecasts, measurements, by="order", to=differences)
def compare(forecast, measurement):
    if forecast["hour"] != measurement["hour"]:
        raise ValueError(f"hour {forecast['hour']} was forecast, and {measurement['hour']} measured")
    return {"hour": forecast["hour"], "difference": measurement["celsius"] - forecast["celsius"]}
