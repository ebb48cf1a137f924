"""Loading models; the one registered attention function; head, logprob and entropy."""
