"""Live: the page of a run on a server of this machine, which shows how far the run is and the report so far."""
