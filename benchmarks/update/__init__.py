"""What the update costs: time, memory and passes over seeded trees (rows 1, 2, 8, 10.update, 14)."""
