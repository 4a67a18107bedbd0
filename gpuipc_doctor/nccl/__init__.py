"""NCCL and RCCL: what ranks of one node do with them, and how a worker calls them."""
