"""What scores trajectories."""
