"""The recipes that come with the plugin, as TOML files."""
