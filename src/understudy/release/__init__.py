"""Releases: what may leave the building. Save, load, verify, export, and the model card."""
