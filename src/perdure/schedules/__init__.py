"""What is due when: schedules that fire once, whichever process looks first."""
