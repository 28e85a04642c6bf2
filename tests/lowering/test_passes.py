import numpy as np

import functx
import functx.numpy as fnp
from functx.lowering.passes import NEEDED, PASSES, only


def test_a_pass_that_is_left_out_does_nothing_to_what_is_lowered():
    x = np.ones((3,), np.float32)

    def text(*names):
        with only(*names), functx.config.set(outline="always", simplify="always"):
            return functx.jit(unrolled).lower(x).as_text()

    every, needed = text(*PASSES), text(*NEEDED)
    assert "while" in every and "while" not in needed
    assert text(*NEEDED, "templates") == needed
    assert "divide" in needed and "divide" not in text(*NEEDED, "simplify")


def unrolled(x):
    for _ in range(12):
        x = fnp.sin(x / 1.0)
    return x
