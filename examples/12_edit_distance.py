"""A dynamic programme with its table filled in place: look at how a loop writes one row at a time."""

import numpy as onp

import functx.numpy as np
from functx import grad, jit, vmap
from functx.lax import fori_loop


def soft_edit_distance(costs, insertion):
    """The least cost to turn one sequence into another, softened so that it has a slope.

    `costs[i, j]` is that of putting the second sequence's element j in place of the first's i;
    leaving one out or putting one in costs `insertion`.
    """
    n, m = costs.shape
    table = np.zeros((n + 1, m + 1))
    table[0, 1:] = insertion * np.arange(1, m + 1)
    table[1:, 0] = insertion * np.arange(1, n + 1)

    def fill_row(i, _):
        def fill(j, _):
            ways = np.stack(
                [
                    table[i - 1, j - 1] + costs[i - 1, j - 1],
                    table[i - 1, j] + insertion,
                    table[i, j - 1] + insertion,
                ]
            )
            table[i, j] = -0.1 * np.log(np.exp(-ways / 0.1).sum())

        fori_loop(1, m + 1, fill, None)

    fori_loop(1, n + 1, fill_row, None)
    return table[n, m]


def mismatches(first, second):
    codes = [onp.array([ord(c) for c in word]) for word in (first, second)]
    return (codes[0][:, None] != codes[1][None, :]).astype("float32")


costs = mismatches("kitten", "mittens")
distance = jit(soft_edit_distance)(costs, 1.0)
print("kitten -> mittens:", distance)
assert abs(distance - 2.0) < 0.2

# The slope along each substitution says how often the cheapest ways make it.
alignment = jit(grad(soft_edit_distance))(costs, 1.0)
print(f"alignment, a row for each letter of kitten:\n{np.round(alignment, 2)}")
assert np.allclose(np.diagonal(alignment)[:6], 1.0, atol=0.1)

# All words at once: the loops and their writes are mapped like everything else.
batch = np.stack([mismatches("kitten", word) for word in ("mittens", "kittens", "bitterr")])
distances = jit(vmap(soft_edit_distance, in_axes=(0, None)))(batch, 1.0)
print("distances of three words:", distances)
assert np.allclose(distances, [jit(soft_edit_distance)(each, 1.0) for each in batch], atol=1e-4)
