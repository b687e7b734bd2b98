"""Engines that methods share: runs, checkpoints, the critic bank."""
