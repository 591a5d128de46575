"""Makes the suite known to pytest: its plugin and the fixtures."""

pytest_plugins = ["specreg.plugin", "fixtures.servers", "fixtures.measurements"]
