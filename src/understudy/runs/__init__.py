"""A run on disk: its folder, description, lock, resumable loop, checkpoints, copies, and how many runs there were."""
