"""The plug-ins of the tests themselves: what runs by default, and what may be skipped."""

from __future__ import annotations

import pytest

pytest_plugins = ["pytester"]

SWEEP = """
import pytest

@pytest.mark.sweep(2, by="kind")
@pytest.mark.parametrize("number", range(20))
@pytest.mark.parametrize("kind", ["a", "b"])
def test_many(kind, number):
    pass

@pytest.mark.slow
def test_deep():
    pass

def test_loop(thorough):
    assert thorough in (True, False)

def test_plain():
    pass
"""


SKIPS = {
    "pytest.skip('no CUDA device')": True,
    "pytest.importorskip('no_such_package')": True,
    "pytest.skip('no_such_package, pytest and onnx are not installed')": True,
    "pytest.skip('ONNX is not installed')": False,
    "pytest.skip('pytest and onnx are not installed')": False,
    "pytest.skip('not today')": False,
}
"""Code that skips a test, and whether its reason holds on every machine of these tests."""


@pytest.fixture
def run(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("CI", "true")
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")
    monkeypatch.setenv("PYTHONPATH", str(pytest.importorskip("sweeps").__file__).rpartition("/")[0])

    def call(code: str, *arguments: str) -> pytest.RunResult:
        pytester.makepyfile(code)
        return pytester.runpytest_subprocess("-p", "sweeps", "-p", "skips", "-v", *arguments)

    return call


def passed(result: pytest.RunResult) -> set[str]:
    return {line.split("::")[1].split()[0] for line in result.outlines if "PASSED" in line}


@pytest.mark.slow
def test_a_sample_and_the_rest_are_everything(run):
    sample, again, other, rest, everything = (
        passed(run(SWEEP, *arguments)) for arguments in ([], [], ["--seed=a"], ["--sweep=rest"], ["--sweep=all"])
    )

    assert sample == again != other
    assert len([name for name in sample if name.startswith("test_many[a")]) == 2
    assert len([name for name in sample if name.startswith("test_many[b")]) == 2
    assert sample | rest == everything
    assert sample & rest == {"test_loop"}
    assert len(everything) == 43


@pytest.mark.slow
@pytest.mark.parametrize("holds", [True, False])
def test_a_skip_needs_a_reason_that_holds(run, holds):
    cases = [code for code, expected in SKIPS.items() if expected is holds]
    tests = (f"def test_{number}():\n    {code}\n" for number, code in enumerate(cases))

    result = run("import pytest\n\n" + "\n".join(tests))

    result.assert_outcomes(skipped=3)
    assert result.ret == (0 if holds else 1)
    assert result.stdout.str().count("::test_") - 3 == (0 if holds else 3)  # named once more at the end
