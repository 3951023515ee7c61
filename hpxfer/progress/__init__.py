"""Progress: how far a run is, as counts and status, on the terminal, in a file, and from another shell."""
