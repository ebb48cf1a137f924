"""Process isolation for untrusted code."""
