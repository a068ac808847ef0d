"""What to test with: an embedded broker, a simulated disk, every moment at which the power may fail."""
