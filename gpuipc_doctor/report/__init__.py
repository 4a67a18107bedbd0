"""What a report says, and two of them compared: pure functions of the model."""
