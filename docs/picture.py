"""Draw a command in a terminal as SVG: `python docs/picture.py OUT.svg -- COMMAND...` (needs pyte).

The command runs in a real pseudo-terminal. The picture is the last screen before `--until` (a text that
the command prints, by default nothing: the screen at its end).
"""

from __future__ import annotations

import argparse
import os
import pty
import re
import shlex
import struct
from fcntl import ioctl
from pathlib import Path
from termios import TIOCSWINSZ

import pyte
from rich.console import Console
from rich.style import Style
from rich.text import Text

COLUMNS, ROWS = 100, 40
FONTS = re.compile(r"@font-face \{.*?\}", re.DOTALL)  # they would be loaded from elsewhere


def main() -> None:
    """Run, draw and write."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("out", type=Path)
    parser.add_argument("--until", default="")
    parser.add_argument("command", nargs="+")
    options = parser.parse_args()
    console = Console(record=True, width=COLUMNS, file=Path(os.devnull).open("w"))
    console.print(Text.assemble(("$ ", "bold green"), shown(options.command)))
    for line in screen_of(options.command, options.until):
        console.print(line, no_wrap=True, crop=True)
    svg = console.export_svg(title="memagent")
    options.out.write_text(FONTS.sub("", svg), "utf-8")


def shown(command: list[str]) -> str:
    """The command as one would type it."""
    return shlex.join([Path(command[0]).name, *command[1:]])


def screen_of(command: list[str], until: str) -> list[Text]:
    """The lines on the screen when the command ends, or just before it prints `until`."""
    screen = pyte.Screen(COLUMNS, ROWS)
    stream = pyte.ByteStream(screen)
    child, terminal = pty.fork()
    if child == 0:
        os.execvp(command[0], command)
    ioctl(terminal, TIOCSWINSZ, struct.pack("HHHH", ROWS, COLUMNS, 0, 0))
    lines: list[Text] = []
    while True:
        try:
            block = os.read(terminal, 65536)
        except OSError:  # how Linux says that the command has ended
            break
        if until and until in block.decode("utf-8", "replace"):
            break
        if not block:
            break
        stream.feed(block)
        lines = styled(screen)
    return lines


def styled(screen: pyte.Screen) -> list[Text]:
    """The screen's lines with their colours, without the empty ones at the end."""
    lines = []
    for row in range(ROWS):
        line = Text()
        for column in range(COLUMNS):
            cell = screen.buffer[row][column]
            colour = None if cell.fg == "default" else named(cell.fg)
            line.append(cell.data, Style(color=colour, bold=cell.bold))
        line.rstrip()
        lines.append(line)
    while lines and not lines[-1].plain.strip():
        lines.pop()
    return lines


def named(colour: str) -> str:
    """The name that rich has for a colour of pyte."""
    if re.fullmatch(r"[0-9a-f]{6}", colour):
        return f"#{colour}"
    colour = colour.replace("brown", "yellow")
    return colour.replace("bright", "bright_")


if __name__ == "__main__":
    main()
