"""What is here: GPUs, drivers, libraries, adapters and settings of a node, each with its source."""
