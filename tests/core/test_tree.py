"""Pytrees by the names of `jax.tree`."""

import jax

from functx import grad, tree


def test_trees_are_mapped_with_paths_transposed_and_broadcast_as_by_jax():
    weights = {"a": 1.0, "b": (2.0, 3.0)}
    calls = (
        lambda t: t.map_with_path(lambda path, x: (jax.tree_util.keystr(path), x), weights),
        lambda t: t.transpose(t.structure([0, 0]), t.structure((0, 0)), [(1, 2), (3, 4)]),
        lambda t: t.broadcast({"a": 0, "b": 1}, weights),
    )
    for call in calls:
        assert call(tree) == call(jax.tree)


def test_a_decay_can_spare_leaves_by_their_path():
    def decay(weights):
        spare = lambda path, w: 0.0 if "bias" in tree.keystr(path) else w**2  # noqa: E731
        return tree.reduce(lambda x, y: x + y, tree.map_with_path(spare, weights))

    slopes = grad(decay)({"bias": 3.0, "kernel": 2.0})
    assert {name: float(slope) for name, slope in slopes.items()} == {"bias": 0.0, "kernel": 4.0}
