"""Files of examples: how fast and in how much memory they are read, and what masking tool results does to a cold start."""
