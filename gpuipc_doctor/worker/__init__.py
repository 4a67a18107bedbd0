"""Code of workers, the only processes that load a driver."""
