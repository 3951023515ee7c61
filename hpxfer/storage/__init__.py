"""Storage: objects in a folder or in a bucket, and the lease that says who may write."""

from hpxfer.storage.lease import LEASE_FILE, Lease, LeaseFile, LeaseObject, decoded, leased
from hpxfer.storage.objects import FIX, MARKER, Bucket, Folder, Objects, Stamp, marked, objects_at, sees, storage_errors
