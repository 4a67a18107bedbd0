"""Level Zero through ctypes: its loader's functions, its structures, IPC handles, Sysman's memory.

Experimental: never run on an Intel GPU. No maintained Python binding has Level Zero's memory functions.
"""
