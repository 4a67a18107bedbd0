"""MPI libraries and their launchers: what a node has, what it can do with device pointers, how to run under it.

The supervising side uses ``finding`` and ``families``, which load nothing; workers use ``awareness`` and
``communicator``.
"""
