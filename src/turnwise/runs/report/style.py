"""How the report looks: one style sheet, for light and dark screens and for paper."""

from turnwise.ledger import ACCOUNTS

_COLOURS = {
    "prefill": "#7fb2f0",
    "decode": "#2a6fdb",
    "tail_idle": "#b9cdea",
    "tool_wait": "#e4572e",
    "environment": "#e0a526",
    "render": "#f0cf7f",
    "load": "#8e5bd0",
    "logprobs": "#6cc9bf",
    "update": "#17a398",
    "padding": "#b5dcd8",
    "diagnose": "#c77dba",
    "evaluate": "#a58bd8",
    "sft": "#5b8c5a",
    "store": "#9aa3af",
    "checkpoint": "#6b7280",
    "prepare": "#c4a484",
    "other": "#c9ced6",
}
"""By account: blue samples, yellow and red play, green learns, pale is what could be saved, grey is housekeeping."""
assert _COLOURS.keys() == ACCOUNTS.keys(), "an account has a colour"

_SHEET = """
:root { color-scheme: light dark; --ink: #1c2430; --soft: #667085; --line: #e3e7ed; --paper: #ffffff; --card: #f7f8fa;
  --s0: #2a6fdb; --s1: #e4572e; --good: #17a398; --bad: #d64545; }
@media (prefers-color-scheme: dark) { :root { --ink: #e6e9ee; --soft: #98a2b3; --line: #2c3440; --paper: #12161c;
  --card: #1a2029; --s0: #6ea8ff; --s1: #ff8a65; } }
* { box-sizing: border-box; }
body { margin: 0 auto; max-width: 940px; padding: 32px 24px 64px; background: var(--paper); color: var(--ink);
  font: 15px/1.55 system-ui, -apple-system, "Segoe UI", Roboto, "Helvetica Neue", sans-serif; }
h1 { font-size: 26px; margin: 0; letter-spacing: -0.01em; overflow-wrap: anywhere; }
h2 { font-size: 18px; margin: 44px 0 10px; }
p { margin: 6px 0; } .soft { color: var(--soft); }
.tiles { display: grid; grid-template-columns: repeat(auto-fit, minmax(150px, 1fr)); gap: 12px; margin: 22px 0 0; }
.tile { background: var(--card); border: 1px solid var(--line); border-radius: 10px; padding: 12px 14px; }
.tile b { display: block; font-size: 22px; font-weight: 600; font-variant-numeric: tabular-nums; }
.tile span { color: var(--soft); font-size: 13px; }
.wide { overflow-x: auto; }
table { border-collapse: collapse; width: 100%; font-size: 14px; }
th, td { text-align: left; padding: 5px 14px 5px 0; border-bottom: 1px solid var(--line); vertical-align: top; }
th { color: var(--soft); font-weight: 500; white-space: nowrap; }
.n { text-align: right; font-variant-numeric: tabular-nums; white-space: nowrap; }
tr.sum td { font-weight: 600; border-bottom: 0; } tr.none td { color: var(--soft); }
.alarm { color: var(--bad); font-weight: 600; }
svg { display: block; width: 100%; height: auto; }
svg.bar { height: 26px; border-radius: 6px; margin: 4px 0 12px; }
.bar rect { fill: #c9ced6; }
.grid { stroke: var(--line); } .tick { fill: var(--soft); }
.line { fill: none; stroke-width: 2; stroke-linejoin: round; } .whisker { stroke-width: 2; opacity: 0.35; }
.line.s0, .whisker.s0 { stroke: var(--s0); } .line.s1, .whisker.s1 { stroke: var(--s1); }
.dot { stroke: var(--paper); stroke-width: 1.5; } .dot.s0 { fill: var(--s0); } .dot.s1 { fill: var(--s1); }
.event { stroke: var(--bad); stroke-dasharray: 3 3; }
.key { display: inline-block; width: 11px; height: 11px; border-radius: 3px; margin-right: 7px; background: #c9ced6; }
td:has(.key) { white-space: nowrap; }
.key.s0 { background: var(--s0); } .key.s1 { background: var(--s1); }
.legend { font-size: 13px; color: var(--soft); margin: 2px 0 6px; } .legend span { margin-right: 18px; }
.small { display: grid; grid-template-columns: repeat(auto-fit, minmax(260px, 1fr)); gap: 18px; margin-top: 14px; }
.small h3 { font-size: 13px; font-weight: 500; color: var(--soft); margin: 0; }
details { margin-top: 10px; } summary { cursor: pointer; color: var(--soft); }
pre { background: var(--card); border: 1px solid var(--line); border-radius: 10px; padding: 14px; overflow-x: auto;
  font: 12.5px/1.5 ui-monospace, SFMono-Regular, Menlo, Consolas, monospace; }
@media (max-width: 600px) { .chart .tick { font-size: 20px; } .small .tick { font-size: 16px; } }
@media print { body { max-width: none; padding: 0; } details { display: none; } }
"""


def style_sheet() -> str:
    """The whole sheet, with a colour for every account."""
    colours = [f".bar .a-{name} {{ fill: {colour}; }}" for name, colour in _COLOURS.items()]
    keys = [f".key.a-{name} {{ background: {colour}; }}" for name, colour in _COLOURS.items()]
    return _SHEET + "\n".join([*colours, *keys]) + "\n"
