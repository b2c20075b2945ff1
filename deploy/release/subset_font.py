"""Makes the font of the report's PDF from a whole Noto Sans CJK: characters of GB 2312 and Latin, and no hints.

    python -m deploy.release.subset_font /usr/share/fonts/opentype/noto/NotoSansCJK-Regular.ttc

The collection is Debian's package fonts-noto-cjk, or https://github.com/notofonts/noto-cjk, release Sans2.004. The
same collection gives the same bytes. Called by hand, where the report is to show other characters.
"""

from __future__ import annotations

import sys

from fontTools import subset
from fontTools.ttLib import TTCollection

from dashboards.report.pdf import FONTS

FAMILY = "Noto Sans CJK SC"
NAMES = (0, 1, 2, 3, 4, 5, 6, 13, 14)
"""Copyright, names, version and licence of the font (OpenType, table `name`)."""
BLOCKS = ((0x20, 0x7E), (0xA0, 0x17F), (0x2000, 0x206F), (0x20A0, 0x20CF), (0x2100, 0x27BF))
"""Latin with its supplements, punctuation, currencies, arrows, mathematics, shapes and marks."""


def characters() -> set[int]:
    """Code points that a report shows: the blocks above, and all of GB 2312 (two bytes, each 0xA1-0xFE)."""
    pairs = (bytes((row, cell)) for row in range(0xA1, 0xFF) for cell in range(0xA1, 0xFF))
    chinese = {ord(sign) for pair in pairs for sign in pair.decode("gb2312", errors="ignore")}
    return chinese.union(*(range(first, last + 1) for first, last in BLOCKS))


def main(arguments: list[str]) -> int:
    """Write the font.

    Returns:
        0, 2 for wrong use.
    """
    if len(arguments) != 1:
        print("usage: python -m deploy.release.subset_font COLLECTION", file=sys.stderr)
        return 2
    families = [font["name"].getDebugName(1) for font in TTCollection(arguments[0], lazy=True)]
    options = subset.Options(
        font_number=families.index(FAMILY), layout_features=["kern"], hinting=False, name_IDs=NAMES,
        recalc_timestamp=False,
    )  # fmt: skip
    font = subset.load_font(arguments[0], options)
    subsetter = subset.Subsetter(options)
    subsetter.populate(unicodes=characters())
    subsetter.subset(font)
    subset.save_font(font, str(FONTS / "NotoSansCJKsc-Regular.otf"), options)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
