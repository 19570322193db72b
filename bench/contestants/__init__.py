"""The contestants: one file each, every one a process of its own that reads its job from the environment."""
