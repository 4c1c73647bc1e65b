"""Tests: meta/ needs no numbers, host/ needs numbers, gpu/ needs a GPU."""
