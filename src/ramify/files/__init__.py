"""Writes that are whole or absent, reads of untrusted files, and the user's own code."""
