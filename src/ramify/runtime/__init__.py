"""Event loop, threads, signals, clocks, and child processes with limits."""
