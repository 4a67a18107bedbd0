"""What runs in a worker: only here is a driver loaded."""
