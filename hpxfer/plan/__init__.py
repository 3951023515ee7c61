"""What a sweep will do and what it costs, before anything runs."""
