"""Storage: bytes in a folder or on an object store, and the lease that says who may write."""
