"""Tool-Star's data (arXiv 2505.16410): sampling, hints, quality, difficulty, preference pairs."""
