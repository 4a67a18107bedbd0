"""How files of other users are opened, how files are written, and how Python is started.

`tests/unit/files/test_only_here.py` finds every other way, and lists the exceptions with their reasons.
"""
