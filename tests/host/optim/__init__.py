"""Optimizers, schedules, mixed precision."""
