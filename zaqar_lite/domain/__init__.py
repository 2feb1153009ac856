"""What a queue is: models, limits, errors and the clock. Standard library only."""
