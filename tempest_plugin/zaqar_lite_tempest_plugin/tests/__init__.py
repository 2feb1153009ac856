"""The tests of the plugin."""
