"""What acts: the only place that loops, waits and orders effects."""
