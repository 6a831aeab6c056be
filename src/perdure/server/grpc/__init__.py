"""What gRPC servers share."""
