import numpy as np

import functx
import functx.numpy as fnp
from functx.passes.pipeline import ALL_PASSES, REQUIRED_PASSES, select_passes


def test_a_pass_that_is_left_out_does_nothing_to_what_is_lowered():
    x = np.ones((3,), np.float32)

    def text(*names):
        with select_passes(*names), functx.config.set(outline="always", simplify="always"):
            return functx.jit(unrolled).lower(x).as_text()

    every, needed = text(*ALL_PASSES), text(*REQUIRED_PASSES)
    assert "while" in every and "while" not in needed
    assert text(*REQUIRED_PASSES, "reuse_operations") == needed
    assert "divide" in needed and "divide" not in text(*REQUIRED_PASSES, "simplify")


def unrolled(x):
    for _ in range(12):
        x = fnp.sin(x / 1.0)
    return x
