"""MPI libraries and launchers: which exist, whether they accept device pointers, how to run them."""
