"""What every family of measurements shares: rows, interleaved runs, peers in their own environment."""
