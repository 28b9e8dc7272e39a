"""Makes docs/report.svg, the picture in the README, of the charts that `kiln compare` has drawn.

    kiln compare configs/quickstart.toml
    python3 docs/report.py runs/quickstart-compare docs/report.svg

The charts are taken as they are and put beside each other, two in a row.
"""

import re
import sys
from pathlib import Path

NAMES = ["throughput", "time-budget", "loss-seconds", "memory"]
GAP = 24

folder, out = Path(sys.argv[1]), Path(sys.argv[2])
charts = [(folder / "charts" / f"{name}.svg").read_text() for name in NAMES]
sizes = [tuple(int(re.search(rf'<svg [^>]*?{side}="(\d+)"', chart)[1]) for side in ("width", "height")) for chart in charts]
width = max(size[0] for size in sizes)
rows = [max(sizes[i][1], sizes[i + 1][1]) for i in (0, 2)]
total = (2 * width + 3 * GAP, sum(rows) + 3 * GAP)
parts = []
for i, (chart, size) in enumerate(zip(charts, sizes)):
    x, y = GAP + (i % 2) * (width + GAP), GAP + (i // 2) * (rows[0] + GAP)
    inside = re.search(r"<svg [^>]*>(.*)</svg>", chart, re.S)[1].strip()
    parts.append(f'<svg x="{x}" y="{y}" width="{size[0]}" height="{size[1]}" viewBox="0 0 {size[0]} {size[1]}">\n{inside}\n</svg>')
head = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {total[0]} {total[1]}" width="{total[0]}" height="{total[1]}">'
title = "<title>Charts of a report of kiln compare</title>"
background = f'<rect width="{total[0]}" height="{total[1]}" fill="#ffffff"/>'
out.write_text("\n".join([head, title, background, *parts, "</svg>\n"]))
