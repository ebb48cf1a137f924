"""Pure data and protocols: standard library and numpy only; no torch, no I/O, no clock."""
