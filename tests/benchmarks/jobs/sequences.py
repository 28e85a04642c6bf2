"""Recurrences, decoding and dynamic programs."""

from __future__ import annotations

from typing import Any

from tests.benchmarks.jobs.learning import integers, normals


def viterbi(fx: Any) -> Any:
    """The likeliest paths of 16 sequences through 32 states."""

    def best(transitions: Any, emissions: Any) -> Any:
        def step(scores: Any, emission: Any) -> Any:
            reached = scores[:, None] + transitions
            return reached.max(0) + emission, reached.argmax(0)

        scores, back = fx.lax.scan(step, emissions[0], emissions[1:])
        path = fx.lax.scan(
            lambda state, row: (row[state], row[state]), scores.argmax(), back, reverse=True
        )
        return path[1], scores.max()

    normal = normals()
    return fx.vmap(best, (None, 0)), (normal(32, 32), normal(16, 200, 32))


def gated_recurrence(fx: Any) -> Any:
    """The gradient of a gated recurrent network over 100 steps."""

    def loss(params: Any, xs: Any) -> Any:
        w, u, b = params

        def step(h: Any, x: Any) -> Any:
            update, reset, _ = fx.np.split(fx.nn.sigmoid(x @ w + h @ u + b), 3, -1)
            candidate = fx.np.tanh((x @ w)[:, -64:] + (reset * h) @ u[:, -64:])
            h = update * h + (1.0 - update) * candidate
            return h, h

        return (fx.lax.scan(step, fx.np.zeros((32, 64)), xs)[1] ** 2).mean()

    normal = normals()
    params = normal(64, 192, scale=0.1), normal(64, 192, scale=0.1), normal(192, scale=0.1)
    return fx.value_and_grad(loss), (params, normal(100, 32, 64))


def beam_search(fx: Any) -> Any:
    """The eight best continuations of 50 words from a table of transitions."""

    def search(scores: Any, start: Any) -> Any:
        def step(beam: Any, _: Any) -> Any:
            words, total = beam
            everything = (total[:, None] + fx.nn.log_softmax(scores[words])).reshape(-1)
            total, best = fx.lax.top_k(everything, 8)
            return (best % 500, total), (best // 500, best % 500)

        first = fx.np.where(fx.np.arange(8) == 0, 0.0, -1e9)
        return fx.lax.scan(step, (fx.np.full(8, start), first), None, length=50)

    return search, (normals()(500, 500), integers(500))


def generation(fx: Any) -> Any:
    """64 words of a single attention layer with a cache of keys and values."""
    width, length = 64, 64

    def generate(params: Any, first: Any) -> Any:
        def step(carry: Any, t: Any) -> Any:
            keys, values, word = carry
            x = params["words"][word]
            keys = fx.lax.dynamic_update_slice(keys, (x @ params["k"])[:, None], (0, t, 0))
            values = fx.lax.dynamic_update_slice(values, (x @ params["v"])[:, None], (0, t, 0))
            scores = fx.np.einsum("bd,btd->bt", x @ params["q"], keys) / 8.0
            weights = fx.nn.softmax(fx.np.where(fx.np.arange(length) <= t, scores, -1e9))
            out = x + fx.np.einsum("bt,btd->bd", weights, values)
            word = fx.np.argmax(fx.nn.gelu(out @ params["wide"]) @ params["words"].T, -1)
            return (keys, values, word), word

        empty = fx.np.zeros((16, length, width))
        return fx.lax.scan(step, (empty, empty, first), fx.np.arange(length))[1]

    normal = normals()
    params = {name: normal(width, width, scale=0.1) for name in ("q", "k", "v", "wide")}
    return generate, (params | {"words": normal(200, width)}, integers(200, 16))


def edit_distance(fx: Any) -> Any:
    """The distances of 64 pairs of words of 40 letters, and the gradient in the costs, softened."""

    def distance(costs: Any, a: Any, b: Any) -> Any:
        def row(above: Any, letter: Any) -> Any:
            diagonal = above[:-1] + costs[letter, b]

            def cell(left: Any, both: Any) -> Any:
                options = fx.np.stack([left + 1.0, both[0] + 1.0, both[1]])
                best = -fx.nn.logsumexp(-4.0 * options) / 4.0
                return best, best

            first = above[0] + 1.0
            rest = fx.lax.scan(cell, first, (above[1:], diagonal))[1]
            return fx.np.concatenate([first[None], rest]), None

        start = fx.np.arange(41) * 1.0
        return fx.lax.scan(row, start, a)[0][-1]

    def mean(costs: Any, a: Any, b: Any) -> Any:
        return fx.vmap(distance, (None, 0, 0))(costs, a, b).mean()

    words = integers(26, 2, 64, 40)
    return fx.value_and_grad(mean), (abs(normals()(26, 26)), *words)


def ctc_scan(fx: Any) -> Any:
    """The gradient of the CTC loss of 16 sequences of 80 frames with 15 labels each."""
    length, words = 80, 30

    def loss(scores: Any, labels: Any) -> Any:
        logs = fx.nn.log_softmax(scores)
        blanks = fx.np.zeros_like(labels)
        extended = fx.np.append(fx.np.stack([blanks, labels], 1).reshape(-1), 0)
        differs = fx.np.concatenate([fx.np.zeros(2, bool), extended[2:] != extended[:-2]])
        never = fx.np.full(len(extended), -1e9)

        def step(alpha: Any, log: Any) -> Any:
            one = fx.np.concatenate([never[:1], alpha[:-1]])
            two = fx.np.where(differs, fx.np.concatenate([never[:2], alpha[:-2]]), -1e9)
            alpha = fx.np.logaddexp(fx.np.logaddexp(alpha, one), two) + log[extended]
            return alpha, None

        start = never.at[:2].set(logs[0, extended[:2]])
        alpha = fx.lax.scan(step, start, logs[1:])[0]
        return -fx.np.logaddexp(alpha[-1], alpha[-2])

    def mean(scores: Any, labels: Any) -> Any:
        return fx.vmap(loss)(scores, labels).mean()

    labels = integers(words - 1, 16, 15) + 1
    return fx.value_and_grad(mean), (normals()(16, length, words), labels)


JOBS = viterbi, gated_recurrence, beam_search, generation, edit_distance, ctc_scan
