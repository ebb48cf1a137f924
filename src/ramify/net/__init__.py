"""HTTP for services: limits, retries, budgets and redaction of keys."""
