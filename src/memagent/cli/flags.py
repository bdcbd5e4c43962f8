"""Flags for the settings, read off the fields of `Settings`."""

from __future__ import annotations

import argparse
from dataclasses import fields

from memagent.settings import NO_ADAPTER, Settings, load_settings, setting_types


def add_settings(parser: argparse.ArgumentParser) -> None:
    """Add a flag for each setting, and --config."""
    group = parser.add_argument_group(
        "settings", "also from a TOML file (--config) and the environment (MEMAGENT_MODEL, ...)"
    )
    group.add_argument("--config", metavar="FILE", help="a TOML file with settings")
    group.add_argument(
        "--no-adapter",
        dest="adapter",
        action="store_const",
        const=NO_ADAPTER,
        default=argparse.SUPPRESS,
        help="the embedded model as it was before training",
    )
    types = setting_types()
    for item in fields(Settings):
        flag = "--" + item.name.replace("_", "-")
        kind = types[item.name]
        text = item.metadata["help"] + (f" ({item.default})" if item.default not in (None, False) else "")
        if kind is bool:
            group.add_argument(
                flag, action=argparse.BooleanOptionalAction, default=argparse.SUPPRESS, help=text
            )
            continue
        group.add_argument(
            flag,
            type=kind,
            default=argparse.SUPPRESS,
            choices=item.metadata["choices"] or None,
            metavar=None if item.metadata["choices"] else {int: "N", float: "X"}.get(kind, "TEXT"),
            help=text,
        )


def settings_from(options: argparse.Namespace) -> Settings:
    """The settings of a command line, over the file and the environment."""
    names = {item.name for item in fields(Settings)}
    given = {name: value for name, value in vars(options).items() if name in names}
    return load_settings(given, options.config)
