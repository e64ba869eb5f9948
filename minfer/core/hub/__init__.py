"""Models by name: where each one lies, which shapes are published, how one is fetched into the cache. No torch."""

from minfer.core.hub.hub import EMBEDDED, PULLABLE, RANDOM, cache_folder, embedded_folder, installed, resolve

__all__ = ["EMBEDDED", "PULLABLE", "RANDOM", "cache_folder", "embedded_folder", "installed", "resolve"]
