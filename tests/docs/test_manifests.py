"""The manifests for the MCP registry and for desktop bundles fit their schemas, and say what the code says."""

from __future__ import annotations

import hashlib
import json
import re
import runpy
import tomllib
from pathlib import Path
from typing import Any

import jsonschema

from helmsman._version import __version__
from helmsman.mcp.server import toolset_tools
from helmsman.settings import SETTINGS

ROOT = Path(__file__).parents[2]
SCHEMAS = Path(__file__).parent / "schemas"
CONVENTIONS = {
    "Model Context Protocol": "clients",
    "MCP tasks, elicitation (forms)": "mcp/test_tasks.py mcp/test_elicitation.py clients/test_typescript_client.py",
    "MCP elicitation by URL": "mcp/test_elicitation.py",
    "MCP `tools/list_changed`": "mcp/test_tool_search.py",
    "MCP Apps": "browser/test_mcp_app.py",
    "MCP authorization": "httpd/test_oauth.py clients/test_typescript_oauth.py browser/test_oauth.py",
    "Claude Code channel": "clients/test_channel.py mcp/test_channel.py",
    "Skills over MCP": "mcp/test_skills.py",
    "MCP server card, AI catalog": "httpd/test_public.py",
    "Claude Code plugin and marketplace": "cli/test_install_in_clients.py",
    "Codex plugin and marketplace": "cli/test_install_in_clients.py",
    "Agent Plugins": "clients_config/test_plugin.py cli/test_install_in_clients.py",
    "Agent Skills": "cli/test_install_in_clients.py",
    "Agent Client Protocol, as agent and as client": "acp_server agents/acp",
    "ACP registry": "agents/test_acp_registry.py",
    "MCP registry entry": "docs/test_manifests.py",
    "MCP bundle": "docs/test_manifests.py",
    "Web Push": "notices/test_web_push.py browser/test_devices.py",
    "OpenTelemetry": "hub/test_telemetry.py",
    "Prometheus": "httpd/test_public.py",
    "Standard Webhooks": "notices/test_ways.py",
    "Tailscale": "cli/test_dashboard.py",
}
"""Where each convention is shown with the program that consumes it, in `tests/`."""
BUNDLE = ROOT / "packaging" / "mcpb"


def load(path: Path) -> Any:
    return json.loads(path.read_text(encoding="utf-8"))


def test_server_json_fits_the_schema_of_the_registry() -> None:
    jsonschema.validate(load(ROOT / "server.json"), load(SCHEMAS / "registry-server.json"))


def test_the_manifest_of_the_bundle_fits_its_schema() -> None:
    jsonschema.validate(load(BUNDLE / "manifest.json"), load(SCHEMAS / "mcpb-manifest-0.4.json"))


def test_all_manifests_have_the_version_of_the_code() -> None:
    server, manifest = load(ROOT / "server.json"), load(BUNDLE / "manifest.json")
    project = tomllib.loads((BUNDLE / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert {manifest["version"], project["version"]} == {__version__}
    semantic = re.sub(r"(?<=\d)rc", "-rc", __version__)  # the spelling that the registry takes
    assert {server["version"], server["packages"][0]["version"]} == {semantic}
    assert project["dependencies"] == [f"codex-helmsman[codex]=={__version__}"]


def test_the_readme_proves_whose_the_name_in_the_registry_is() -> None:
    name = load(ROOT / "server.json")["name"]
    assert f"mcp-name: {name} " in (ROOT / "README.md").read_text(encoding="utf-8")


def test_the_package_has_a_console_script_of_its_own_name() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert project["name"] == load(ROOT / "server.json")["packages"][0]["identifier"]
    assert project["scripts"][project["name"]] == project["scripts"]["helmsman"]


def test_manifests_name_variables_and_tools_that_exist() -> None:
    known = {setting.variable for setting in SETTINGS.values()}
    server, manifest = load(ROOT / "server.json"), load(BUNDLE / "manifest.json")
    assert {variable["name"] for variable in server["packages"][0]["environmentVariables"]} <= known
    assert set(manifest["server"]["mcp_config"]["env"]) <= known
    assert [tool["name"] for tool in manifest["tools"]] == [
        tool.name for tool in toolset_tools("sessions", ("sessions",))
    ]


def test_the_bundle_contains_the_program_it_starts() -> None:
    entry = load(BUNDLE / "manifest.json")["server"]["entry_point"]
    compile((BUNDLE / entry).read_text(encoding="utf-8"), entry, "exec")


def test_llms_txt_has_the_form_of_its_convention_and_links_to_pages_that_exist() -> None:
    text = (ROOT / "llms.txt").read_text(encoding="utf-8")
    lines = text.splitlines()
    assert lines[0] == "# Helmsman"
    assert lines[2].startswith("> ")
    sections = [line for line in lines if line.startswith("#")]
    assert sections[1:] == ["## Use", "## Reference", "## Optional"]
    links = re.findall(r"^- \[.+?\]\((.+?)\)", text, re.MULTILINE)
    assert len(links) > 10
    assert not [link for link in links if not (ROOT / link).is_file()]


def test_the_release_workflow_is_the_only_job_that_may_publish() -> None:
    text = (ROOT / ".github" / "workflows" / "release.yml").read_text(encoding="utf-8")
    assert "password" not in text
    assert text.count("id-token: write") == 2  # the package index, and the MCP registry
    assert "make dist" in text


def test_the_formula_installs_the_sdist_that_was_built(tmp_path: Path) -> None:
    sdist = tmp_path / f"codex_helmsman-{__version__}.tar.gz"
    sdist.write_bytes(b"built")
    formula = runpy.run_path(str(ROOT / "scripts" / "make_dist.py"))["formula_of"](sdist)
    assert f'version "{__version__}"' in formula
    assert f'/c/codex_helmsman/{sdist.name}"' in formula
    assert hashlib.sha256(b"built").hexdigest() in formula
    assert "@" not in formula.replace("python@3.13", "")


def test_every_convention_has_its_tests() -> None:
    _, page = (ROOT / "docs" / "conventions.md").read_text(encoding="utf-8").split("| --- |", 1)
    assert [line.split("|")[1].strip() for line in page.splitlines()[1:] if line] == list(CONVENTIONS)
    for places in CONVENTIONS.values():
        assert all((ROOT / "tests" / place).exists() for place in places.split())
