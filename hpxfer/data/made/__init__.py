"""Made: samples that are made on the spot, so that examples run anywhere."""
