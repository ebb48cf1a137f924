"""Rows about growing trees: the engine, the schedule, branching."""
