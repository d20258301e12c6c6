"""Call uv, which asks where pip asks: python -m tools.installing pip install --python PYTHON WHAT.

It makes environments and wheels in a second or two where pip takes a minute.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys


def environment() -> dict[str, str]:
    """Return what uv needs to ask where pip asks; one BLAS thread, for two runs share the cores.

    Without compiled files every program a test starts would compile all the libraries again.
    """
    asked = [sys.executable, "-m", "pip", "config", "list"]
    listed = subprocess.run(asked, capture_output=True, text=True, check=False).stdout
    pip = dict(re.findall(r"^(?:global|install|:env:)\.([a-z-]+)='(.*)'$", listed, re.M))
    names = {
        "UV_DEFAULT_INDEX": "index-url",
        "UV_INDEX": "extra-index-url",
        "UV_FIND_LINKS": "find-links",
        "SSL_CERT_FILE": "cert",
    }
    given = {name: pip[key].strip() for name, key in names.items() if pip.get(key)}
    fixed = {"UV_PYTHON_DOWNLOADS": "never", "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
    own = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    return {**given, **own, **fixed}


def main() -> int:
    """Call uv with the same words."""
    command = [sys.executable, "-m", "uv", "--quiet", *sys.argv[1:]]
    return subprocess.run(command, env=environment(), check=False).returncode


if __name__ == "__main__":
    sys.exit(main())
