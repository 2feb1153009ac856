"""The entry point by which tempest finds the plugin."""

from pathlib import Path
from typing import Any

from tempest import config
from tempest.test_discover import plugins

from zaqar_lite_tempest_plugin import config as options


class ZaqarLiteTempestPlugin(plugins.TempestPlugin):
    """Tell tempest where the tests are and which options they read."""

    def load_tests(self) -> tuple[str, str]:
        """The folder of the tests, and the folder that their names begin at."""
        package = Path(__file__).resolve().parent
        return str(package / "tests"), str(package.parent)

    def register_opts(self, conf: Any) -> None:
        """Add the plugin's options to tempest's."""
        config.register_opt_group(conf, config.service_available_group, [options.service_option])
        config.register_opt_group(conf, options.group, options.options)

    def get_opt_lists(self) -> list[tuple[str, list[Any]]]:
        """The options, for tempest's sample configuration."""
        return [
            (options.group.name, options.options),
            (config.service_available_group.name, [options.service_option]),
        ]
