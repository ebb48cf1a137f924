"""The folder that goes on a vLLM server's PYTHONPATH. It holds one file, so that nothing of ramify shadows a module there."""
