"""What a node's processes do, seen from outside."""
