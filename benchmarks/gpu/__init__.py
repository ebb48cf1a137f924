"""Figures of one GPU: updates, the local engine, and how far both are apart. `make gpu`."""
