"""The line that names what is missing and how to install it."""

import sys

import pytest

import fedge
from fedge.extras import LIBRARIES, MissingPackage, require_modules


def test_a_command_names_every_library_that_it_lacks_and_one_command_for_all(monkeypatch):
    monkeypatch.setitem(LIBRARIES, "nowhere_a", ("Flower", "sim"))
    monkeypatch.setitem(LIBRARIES, "nowhere_b", ("PyTorch", "train"))

    with pytest.raises(MissingPackage) as caught:
        require_modules("fedge run", "nowhere_a", "nowhere_b")

    assert str(caught.value) == "fedge run needs Flower and PyTorch: pip install 'fedge[sim,train]'"


def test_a_function_in_python_names_the_library_that_it_lacks(monkeypatch):
    monkeypatch.setitem(sys.modules, "pyarrow", None)

    with pytest.raises(MissingPackage, match=r"^fedge.to_table needs PyArrow: pip install 'fedge\[report\]'$"):
        fedge.to_table([{"a": 1}])


def test_nothing_is_imported_to_see_that_it_is_there():
    sys.modules.pop("plotly", None)

    require_modules("fedge report", "plotly")

    assert "plotly" not in sys.modules
