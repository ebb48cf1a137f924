"""The evaluation loop, pass@k, and confidence intervals."""
