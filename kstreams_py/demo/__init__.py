"""The demonstrations of `kstreams demo`: real data, workers killed at random, results checked to the row."""
