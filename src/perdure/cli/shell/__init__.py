"""What commands share: options, arguments, output and connections."""
