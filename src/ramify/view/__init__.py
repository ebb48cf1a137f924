"""Looking at runs: JSON values of their trees, a static page, and a server on loopback. Nothing here loads a model."""
