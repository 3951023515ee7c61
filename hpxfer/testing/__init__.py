"""What others may test with: conformance suites of what users register."""
