"""What only the MongoDB driver has."""
