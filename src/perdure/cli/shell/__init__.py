"""What commands share: options, output, connections."""
