"""Rewards and scores of trajectories."""
