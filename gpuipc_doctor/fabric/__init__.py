"""libfabric and UCX without MPI: their own test programs, and what the node says of its network adapters."""
