"""The folder that goes on a vLLM server's PYTHONPATH. It holds these files alone, so that nothing of ramify shadows a module there."""
