"""libfabric and UCX without MPI: their own test programs, and the node's network adapters."""
