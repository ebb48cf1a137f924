"""pass@k, intervals and the evaluation loop."""
