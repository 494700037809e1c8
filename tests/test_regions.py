"""Solution regions: one text, three readings."""

import ast
import textwrap

import pytest

from puzzles import _regions


def text(source: str) -> str:
    return textwrap.dedent(source).lstrip("\n")


STATEMENTS = text("""
    def kernel(x_ref, o_ref):
        n = 3
        ### BEGIN SOLUTION
        # why
        x = x_ref[...]

        o_ref[...] = x * n
        ### END SOLUTION
    """)


def test_statements_become_one_ellipsis_with_their_number():
    assert _regions.starter(STATEMENTS) == text("""
        def kernel(x_ref, o_ref):
            n = 3
            ...  # YOUR CODE HERE (about 2 lines)
        """)


def test_keyword_arguments_keep_their_names():
    source = text("""
        def f(x):
            return call(
                kernel,
                ### BEGIN SOLUTION
                grid=(4, 2),
                in_specs=[
                    Spec((8, 128), index_map=lambda i, j: (i, j)),
                ],
                ### END SOLUTION
                out_shape=x,
            )(x)
        """)
    assert _regions.starter(source) == text("""
        def f(x):
            return call(
                kernel,
                grid=...,  # YOUR CODE HERE
                in_specs=...,  # YOUR CODE HERE
                out_shape=x,
            )(x)
        """)


def test_list_elements_become_one_ellipsis():
    source = text("""
        specs = [
            ### BEGIN SOLUTION
            Spec((8, 128), lambda i: (i, 0)),
            Spec((8, 128), lambda i: (0, i)),
            ### END SOLUTION
            Spec((1, 1), lambda i: (0, 0)),
        ]
        """)
    assert _regions.starter(source) == text("""
        specs = [
            ...,  # YOUR CODE HERE
            Spec((1, 1), lambda i: (0, 0)),
        ]
        """)


@pytest.mark.parametrize(
    ("source", "line"),
    [
        ("### BEGIN SOLUTION\nx = 1\n", 1),
        ("x = 1\n### END SOLUTION\n", 2),
        ("x = 1\n### BEGIN SOLUTION\n### END SOLUTION\n", 2),
        ("### BEGIN SOLUTION\nx = 1\n### BEGIN SOLUTION\nx = 2\n### END SOLUTION\n", 1),
    ],
)
def test_a_broken_region_is_named_by_its_line(source, line):
    with pytest.raises(_regions.RegionError, match=f"line {line}: write '### BEGIN SOLUTION'"):
        _regions.starter(source)


def places(source: str) -> int:
    return len(list(_regions.ellipsis_values(ast.parse(text(source)))))


@pytest.mark.parametrize(
    "source",
    [
        "x = x_ref[...]",
        "o_ref[..., 0] = x_ref[0, ...] + 1",
        "def f(x: tuple[int, ...]) -> None:\n    return g(x_ref[...])",
        "def f(x):\n    ...  # left over beside code\n    return x",
        "everything = (..., 0)\nx_ref[everything] = 1",
        "pl.when(c)(lambda: x_ref.__setitem__(..., z))",
    ],
)
def test_an_ellipsis_in_a_subscript_or_beside_code_is_no_gap(source):
    assert places(source) == 0


@pytest.mark.parametrize(
    "source",
    [
        "grid = ...",
        "f(grid=...)",
        "[...]",
        "return_value = f(a, ...)[...]",
        "def f(x):\n    ...",
        'def f(x):\n    """Doc."""\n    ...',
    ],
)
def test_an_ellipsis_that_stands_for_a_value_is_a_gap(source):
    assert places(source) == 1


@pytest.mark.parametrize(("old", "times"), [("c = 1", 0), ("= 1", 2)])
def test_an_edit_that_does_not_occur_exactly_once_is_an_error(old, times):
    with pytest.raises(_regions.RegionError, match=f"occurs {times} times instead of once"):
        _regions.edit("a = 1\nb = 1\n", [(old, "")])
