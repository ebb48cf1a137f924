"""Metrics, traces and reports."""
