"""initial."""
