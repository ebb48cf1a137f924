"""Tools that the policy can call."""
