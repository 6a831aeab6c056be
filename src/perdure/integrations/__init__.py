"""What runs inside other people's programs."""
