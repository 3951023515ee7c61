"""What others may test with: the conformance suite that every executor passes."""
