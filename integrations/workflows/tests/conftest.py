"""The fixtures of memagent's own tests; pytest runs in the checkout, whose `tests` are on its path."""

from conftest import interruptible, nobody, serve  # noqa: F401
