"""What MkDocs does beside its own work: pages made from the code, and links that lead out of ``docs/``.

The sources are written to be read as they are, beside the code: they link to each other, to ``CONTRIBUTING.md`` or to
``benchmarks/results``. On the site all of that has a place too, and every link is turned to it.
"""

from __future__ import annotations

import json
import posixpath
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.exceptions import PluginError
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT / "website"), str(ROOT / "benchmarks")]

import reference  # noqa: E402
from measured import measured_section  # noqa: E402
from understudy.methods.registry import method_names  # noqa: E402

_BESIDE = {f"{name}.md": f"{name.lower()}.md" for name in ("CONTRIBUTING", "SECURITY", "CHANGELOG")}
_BESIDE |= {"README.md": "index.md"}
_LINK = re.compile(r"(!?\[[^\]]*\]\()([^)\s#]+)((?:#[^)\s]*)?\))")
_CODE = re.compile(r"(^```.*?^```|`[^`\n]*`)", re.MULTILINE | re.DOTALL)
_ELSEWHERE = "files/"  # where other files that are linked lie on the site
_EACH_METHOD = "methods/"  # in the navigation: stands for the pages of all methods


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Name the page of every method in the navigation."""
    for section in config.nav or []:
        for pages in section.values():
            if isinstance(pages, list) and _EACH_METHOD in pages:
                place = pages.index(_EACH_METHOD)
                pages[place : place + 1] = [{name: f"methods/{name}.md"} for name in method_names()]
    return config


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages that are made from the code, and what lies beside ``docs/`` and is linked from it."""
    for address, text in generated_pages():
        files.append(File.generated(config, address, content=text))
    for name, address in _BESIDE.items():
        if address != "index.md":
            files.append(File.generated(config, address, content=(ROOT / name).read_text(encoding="utf-8")))
    for path in sorted((ROOT / "benchmarks/results").iterdir()):
        files.append(File.generated(config, f"measured/{path.name}", abs_src_path=str(path)))
    for name in sorted(linked_files()):
        files.append(File.generated(config, site_address(name), abs_src_path=str(ROOT / name)))
    return files


def linked_files() -> set[str]:
    """Files of the repository that a guide links to and that lie neither in ``docs/`` nor among the results."""
    found = set()
    for page in (ROOT / "docs").glob("**/*.md"):
        source = page.relative_to(ROOT).as_posix()
        for link in _LINK.finditer(_CODE.sub("", page.read_text(encoding="utf-8"))):
            if not re.match(r"[a-z]+:", link[2]):
                found.add(posixpath.normpath(posixpath.join(posixpath.dirname(source), link[2])))
    return {path for path in found if site_address(path).startswith(_ELSEWHERE)}


def generated_pages() -> Iterator[tuple[str, str]]:
    """Address and text of every page that no file holds."""
    yield "reference/commands.md", reference.commands_page()
    yield "reference/python.md", reference.python_page()
    for name in method_names():
        yield f"methods/{name}.md", reference.method_page(name, measured_section(name))
    for path in sorted((ROOT / "docs/notebooks").glob("*.ipynb")):
        yield f"notebooks/{path.stem}.md", notebook_page(json.loads(path.read_text(encoding="utf-8")), path.name)


def on_page_markdown(markdown: str, page: Page, **_: Any) -> str:
    """Turn the links of a source to where their targets are on the site; code is left as it is."""
    address = page.file.src_uri
    beside = {value: key for key, value in _BESIDE.items()}
    source = "docs/" + address if address not in beside or address == "index.md" else beside[address]
    if address == "methods.md":
        markdown = re.sub(r"^\| `([\w-]+)` \|", r"| [`\1`](methods/\1.md) |", markdown, flags=re.MULTILINE)

    def turned(link: re.Match[str]) -> str:
        target = link[2]
        if re.match(r"[a-z]+:", target):
            return link[0]
        goal = site_address(posixpath.normpath(posixpath.join(posixpath.dirname(source), target)))
        return link[1] + posixpath.relpath(goal, posixpath.dirname(address) or ".") + link[3]

    parts = _CODE.split(markdown)
    parts[::2] = [_LINK.sub(turned, part) for part in parts[::2]]
    return "".join(parts)


def site_address(path: str) -> str:
    """Where a file of the repository is on the site."""
    if path in _BESIDE:
        return _BESIDE[path]
    if path.startswith("benchmarks/results/"):
        return "measured/" + posixpath.basename(path)
    if path.startswith("docs/"):
        return path.removeprefix("docs/").replace(".ipynb", ".md")
    if (ROOT / path).is_file() and not path.endswith(".md"):
        return _ELSEWHERE + path
    raise PluginError(f"{path} is linked from the docs and has no place on the site: see website/hooks.py")


# Notebooks


def notebook_page(notebook: dict[str, Any], name: str) -> str:
    """A notebook as it was run: its words, its code and what came out."""
    parts = []
    for cell in notebook["cells"]:
        text = "".join(cell["source"])
        parts.append(text if cell["cell_type"] == "markdown" else f"```python\n{text}\n```")
        parts += [_output(output) for output in cell.get("outputs", [])]
    title, *rest = parts
    return "\n\n".join([title, f'<a href="{name}" download>Download this notebook</a>', *rest]) + "\n"


def _output(output: dict[str, Any]) -> str:
    data = output.get("data", {})
    if "image/png" in data:
        return f"![What the cell above draws](data:image/png;base64,{''.join(data['image/png'].split())})"
    text = "".join(output.get("text", data.get("text/plain", "")))
    return f'```text title="out"\n{text.rstrip()}\n```'
