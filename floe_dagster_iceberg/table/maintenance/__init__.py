"""Operations that rewrite, expire or delete files and change no row."""

from collections.abc import Callable

Progress = Callable[[str], None]
"""Called with a line of text about the work done so far."""
