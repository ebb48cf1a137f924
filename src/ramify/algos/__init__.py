"""Branching rules, estimators and losses: one file a paper."""
