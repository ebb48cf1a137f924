"""Event loop, threads, signals and clocks of a process."""
