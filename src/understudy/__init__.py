"""Understudy."""
