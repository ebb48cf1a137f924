"""What writes tokens."""
