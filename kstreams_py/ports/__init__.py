"""What touches the outside: one outside thing a file."""
