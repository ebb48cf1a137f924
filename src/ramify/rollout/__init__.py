"""The agent loop and the growth of trees."""
