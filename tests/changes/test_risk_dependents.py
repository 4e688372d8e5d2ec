"""Who imports whom is told by the imports alone, in every language that we know."""

from __future__ import annotations

from pathlib import Path

from risk_repository import Files, changed

from closeloop.changes.risk import assess_risk
from closeloop.changes.risk.import_graph import ImportGraph, build_import_graph, shared_threshold
from closeloop.changes.risk.risk_model import RiskModel, determine_risk_level


def graph(folder: Path, files: Files, modules: dict[str, str] | None = None) -> ImportGraph:
    with changed(folder, {"README.md": "x"}, files) as inspection:
        return build_import_graph(inspection.index.imports(), modules or {})


def test_python_imports_are_followed_to_the_file_behind_the_package(tmp_path: Path) -> None:
    told = graph(
        tmp_path / "r",
        {
            "src/pkg/__init__.py": "from .core import Context\n",
            "src/pkg/core.py": "from . import text\nfrom .sub.deep import f\nimport os\n",
            "src/pkg/text.py": "x = 1\n",
            "src/pkg/sub/__init__.py": "",
            "src/pkg/sub/deep.py": "from ..text import x\nimport pkg.core\n",
            "src/pkg/user.py": "from pkg import Context\n",
            "tests/test_core.py": "from pkg.core import Context\n",
        },
    )

    assert told["src/pkg/text.py"] == {"src/pkg/core.py", "src/pkg/sub/deep.py"}
    assert told["src/pkg/core.py"] == {
        "src/pkg/__init__.py",
        "src/pkg/sub/deep.py",
        "src/pkg/user.py",
    }
    assert told["src/pkg/sub/deep.py"] == {"src/pkg/core.py"}


def test_scripts_are_found_with_and_without_their_endings(tmp_path: Path) -> None:
    told = graph(
        tmp_path / "r",
        {
            "src/a.ts": "import {b} from './b.js';\nimport 'react';\nexport * from './lib';\n",
            "src/b.ts": "export const b = 1;\n",
            "src/lib/index.ts": "export const c = 1;\n",
            "src/old.js": "const b = require('./b');\n",
        },
    )

    assert told["src/b.ts"] == {"src/a.ts", "src/old.js"}
    assert told["src/lib/index.ts"] == {"src/a.ts"}


def test_go_packages_are_found_by_their_module(tmp_path: Path) -> None:
    files = {
        "go.mod": "module example.org/x\n",
        "main.go": 'package main\nimport (\n\t"fmt"\n\t"example.org/x/text"\n)\n',
        "text/a.go": "package text\n",
        "text/b.go": "package text\n",
    }

    told = graph(tmp_path / "r", files, {"example.org/x": ""})

    assert told["text/a.go"] == told["text/b.go"] == {"main.go"}


def test_java_and_rust_imports_are_found_by_their_paths(tmp_path: Path) -> None:
    java = "src/main/java/com/x"
    told = graph(
        tmp_path / "r",
        {
            f"{java}/Json.java": "package com.x;\npublic class Json {}\n",
            f"{java}/in/User.java": "package com.x.in;\nimport com.x.Json;\nclass User {}\n",
            f"{java}/in/Star.java": "package com.x.in;\nimport com.x.*;\nclass Star {}\n",
            f"{java}/in/Fixed.java": "package com.x.in;\nimport static com.x.Json.MAX;\n",
            "src/lib.rs": "mod a;\nmod b;\n",
            "src/a.rs": "use crate::b::Thing;\nuse std::io;\n",
            "src/b.rs": "pub struct Thing;\n",
        },
    )

    assert told[f"{java}/Json.java"] == {
        f"{java}/in/{name}.java" for name in ("User", "Star", "Fixed")
    }
    assert told["src/b.rs"] == {"src/a.rs"}


def test_a_file_is_shared_from_many_importers_on() -> None:
    few: ImportGraph = {f"{number}.py": frozenset() for number in range(100)}
    many: ImportGraph = {f"{n}.py": frozenset(str(other) for other in range(n)) for n in range(100)}

    assert shared_threshold(few) == 10
    assert shared_threshold(many) == 95


def test_shared_code_and_base_classes_weigh(tmp_path: Path) -> None:
    before = {
        "pkg/__init__.py": "",
        "pkg/base.py": "class Base:\n    limit = 1\n",
        **{
            f"pkg/user{n}.py": "from pkg.base import Base\nclass A(Base): pass\n" for n in range(12)
        },
    }

    with changed(
        tmp_path / "r", before, {"pkg/base.py": "class Base:\n    limit = 2\n"}
    ) as inspection:
        risk = assess_risk(inspection, history=None, model=RiskModel())

    texts = {factor.name: factor.text for factor in risk.factors}
    assert texts["dependents"] == (
        "changes shared code: 12 files import pkg/base.py and can break with it"
    )
    assert (
        texts["base class"]
        == "changes the base class `Base`, from which 12 classes elsewhere derive and inherit the "
        "change"
    )
    assert [determine_risk_level(rank, risk.factors) for rank in (0.1, 0.7, 0.9, 0.99)] == [
        *("low", "medium", "high", "high")
    ]
