"""MPI libraries and their launchers: which there are, whether they take device pointers, how to run them.

The supervisor uses `locate` and `families`, which load nothing; workers use `survey` and `communicator`.
"""
