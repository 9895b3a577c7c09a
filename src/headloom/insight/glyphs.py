"""Text that matplotlib can draw whatever the script, and without a warning."""

import functools

from matplotlib.font_manager import FontProperties, fontManager, get_font

MISSING = "\N{WHITE SQUARE}"
"""Stands for a character that no installed font has."""

# Looked for after matplotlib's own font, for the scripts that it lacks; those not installed are left out.
_FALLBACKS = (
    "Noto Sans CJK SC", "Noto Sans CJK JP", "Source Han Sans SC", "WenQuanYi Zen Hei", "Droid Sans Fallback",
    "PingFang SC", "Hiragino Sans", "Microsoft YaHei", "Arial Unicode MS", "Noto Sans Arabic", "Noto Sans Hebrew",
    "Noto Sans Devanagari", "Noto Sans Bengali", "Noto Sans Tamil", "Noto Sans Thai", "Noto Sans Symbols2",
)  # fmt: skip


def drawable(text: str, *, max_length: int) -> str:
    """`text` in characters that `fonts()` draws.

    Line ends and other control characters are shown as their escapes; a text longer than `max_length` is
    cut and ends in an ellipsis; a character that no font has becomes `MISSING`.
    """
    visible = "".join(character if character.isprintable() else _escaped(character) for character in text)
    if len(visible) > max_length:
        visible = visible[: max_length - 1] + "\N{HORIZONTAL ELLIPSIS}"
    code_points = _code_points()
    return "".join(character if ord(character) in code_points else MISSING for character in visible)


@functools.cache
def fonts() -> FontProperties:
    """matplotlib's own font, then what is installed for other scripts."""
    installed = {entry.name for entry in fontManager.ttflist}
    return FontProperties(family=["DejaVu Sans", *(name for name in _FALLBACKS if name in installed)])


@functools.cache
def _code_points() -> frozenset[int]:
    """What the fonts cover. It is asked beforehand because matplotlib warns of each glyph it misses."""
    families = set(fonts().get_family())
    paths = {entry.fname for entry in fontManager.ttflist if entry.name in families}
    return frozenset(code_point for path in paths for code_point in get_font(path).get_charmap())


def _escaped(character: str) -> str:
    return character.encode("unicode_escape").decode("ascii")
