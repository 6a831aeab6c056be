"""What every domain uses; it knows no domain."""
