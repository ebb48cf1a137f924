"""What the update costs: time, memory and passes over seeded trees (rows 1, 1t, 2, 8, 8t, 10.update, 14)."""
