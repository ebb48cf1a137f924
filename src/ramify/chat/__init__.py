"""Text and tokens: one renderer over the tokenizer's own chat template, and the papers' tag dialect."""
