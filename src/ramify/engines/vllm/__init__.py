"""Rollouts on vLLM servers: token ids in; token ids, logprobs and weight versions out."""
