"""Generates the site's page about the command line from the commands: a hook of mkdocs, listed in mkdocs.yml."""

from __future__ import annotations

from typing import Any

MARK = "<!-- commands -->"


def on_page_markdown(markdown: str, **_: Any) -> str:
    """Replace the mark by the commands."""
    return markdown.replace(MARK, commands()) if MARK in markdown else markdown


def commands() -> str:
    """Every command with its arguments and options, as Markdown."""
    import typer
    from typer.cli import get_docs_for_click

    from rtl_agent_gym.cli import app

    command = typer.main.get_command(app)
    return str(get_docs_for_click(obj=command, ctx=typer.Context(command), name="rtl-agent-gym"))
