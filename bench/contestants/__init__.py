"""The contestants: a file for each, which runs as a process and reads its job from the environment."""
