"""Parts of a running program that are not about agents: child processes with limits."""
