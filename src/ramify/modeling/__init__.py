"""Loading and saving models; the registered attention function; the head with logprobs and entropies."""
