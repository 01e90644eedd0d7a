"""Other libraries' interfaces. Import a module of this folder only where its library is installed."""
