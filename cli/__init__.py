"""The pagewire command. Imports what a command needs when that command runs."""
