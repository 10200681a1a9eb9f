"""The settings reference as a page of the docs."""

from turnwise.reference.listing import REQUIRED, about_section, list_settings


def to_markdown() -> str:
    """The page docs/settings.md."""
    lines = [
        "# Settings",
        "",
        "Every key of a recipe, in the order of `config.yaml`; written by `turnwise settings --markdown`.",
        "In the terminal: `turnwise settings rollout` for a section, and `turnwise train encyclopedia-grpo --explain`",
        "for where each value of a run comes from.",
        "A key known from TRL, verl or RAGEN (last column) is answered with the one it has here.",
    ]
    section = None
    for one in list_settings():
        if one.section != section:
            section = one.section
            title = f"## `{section}`" if section else "## The experiment"
            lines += ["", title, "", about_section(section), ""]
            lines += ["| key | type | default | what it does | read by | known as |", "|---|---|---|---|---|---|"]
        cells = (
            f"`{one.key}`",
            one.type,
            one.default if one.default == REQUIRED else f"`{one.default}`",
            one.about,
            ", ".join(f"[{module}](../src/turnwise/{module})" for module in one.read_by),
            ", ".join(one.known_as),
        )
        lines.append(f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in cells)} |")
    return "\n".join(lines) + "\n"
