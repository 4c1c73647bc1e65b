"""What only a GPU can tell, asked by one command: ``python -m bench.gpu --out DIR``."""
