"""What is deleted because of its age, and how much a database holds."""
