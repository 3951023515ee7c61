"""Storage: objects in a folder or in a bucket, and the lease that says who may write."""
