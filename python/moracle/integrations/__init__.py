"""Integrations. Import a module of this folder only if its library is installed."""
