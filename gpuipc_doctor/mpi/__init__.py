"""MPI libraries and their launchers: which there are, whether they take device pointers, how to run them.

The supervising side uses ``finding`` and ``families``, which load nothing; workers use ``awareness`` and
``communicator``.
"""
