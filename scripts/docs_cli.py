"""The command line's page of the site, made from the commands themselves: a hook of mkdocs, named in mkdocs.yml."""

from __future__ import annotations

from typing import Any

MARK = "<!-- commands -->"


def on_page_markdown(markdown: str, **_: Any) -> str:
    """Puts the commands in the place of the mark."""
    return markdown.replace(MARK, commands()) if MARK in markdown else markdown


def commands() -> str:
    """Every command with its arguments and options, as Markdown."""
    import typer
    from typer.cli import get_docs_for_click

    from rtl_agent_gym.cli import app

    command = typer.main.get_command(app)
    return str(get_docs_for_click(obj=command, ctx=typer.Context(command), name="rtl-agent-gym"))
