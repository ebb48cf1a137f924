"""The Python door: objects over the parts that the command line runs. `ramify/__init__.py` lists the public names."""
