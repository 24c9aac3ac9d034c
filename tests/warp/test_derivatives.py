# SPDX-License-Identifier: Apache-2.0
"""Every backward launcher is the derivative of its primal, by central differences in float64.

`ADJOINTS` says what is the adjoint of what. For an adjoint with outputs grad_i and a primal with outputs
out_k, L = sum of <cotangent_k, out_k> must change by <grad_i, direction> along every direction of input i.
"""

from dataclasses import dataclass

import numpy as np
import pytest
from launchers import INTERFACE, Segments, call, inputs_of, make_inputs, route, sorted_idx, widths


@dataclass(frozen=True)
class Adjoint:
    primal: str
    cotangents: dict[str, str]  # output of the primal: argument of the adjoint
    gradients: dict[str, str]  # input of the primal: output of the adjoint


def adjoint(primal, cotangents, gradients):
    def pairs(text):
        return dict(pair.split(":") for pair in text.split())

    return Adjoint(primal, pairs(cotangents), pairs(gradients))


ADJOINTS = {
    "segmented_sum_backward": adjoint("segmented_sum", "out:g_out", "x:grad_x"),
    "segmented_sum_double_backward": adjoint("segmented_sum_backward", "grad_x:gg_x", "g_out:grad_g_out"),
    "segmented_broadcast_backward": adjoint("segmented_broadcast", "out:g_out", "values:grad_values"),
    "segmented_broadcast_double_backward": adjoint(
        "segmented_broadcast_backward", "grad_values:gg_values", "g_out:grad_g_out"
    ),
    "segmented_component_sum_backward": adjoint("segmented_component_sum", "out:g_out", "x:grad_x"),
    "segmented_component_sum_double_backward": adjoint(
        "segmented_component_sum_backward", "grad_x:gg_x", "g_out:grad_g_out"
    ),
    "segmented_add_backward": adjoint("segmented_add", "out:g_out", "x:grad_x y:grad_y"),
    "segmented_add_double_backward": adjoint("segmented_add_backward", "grad_x:gg_x grad_y:gg_y", "g_out:grad_g_out"),
    "segmented_mul_backward": adjoint("segmented_mul", "out:g_out", "x:grad_x y:grad_y"),
    "segmented_mul_double_backward": adjoint(
        "segmented_mul_backward",
        "grad_x:gg_gx grad_y:gg_gy",
        "g_out:grad_g_out x:grad_x_extra y:grad_y_extra",
    ),
    "segmented_dot_backward": adjoint("segmented_dot", "out:g_out", "x:grad_x y:grad_y"),
    "segmented_dot_double_backward": adjoint(
        "segmented_dot_backward",
        "grad_x:gg_gx grad_y:gg_gy",
        "g_out:grad_g_out x:grad_x_extra y:grad_y_extra",
    ),
    "segmented_inner_products_backward": adjoint(
        "segmented_inner_products", "out_xy:g_xy out_xx:g_xx out_yy:g_yy", "x:grad_x y:grad_y"
    ),
    "segmented_inner_products_double_backward": adjoint(
        "segmented_inner_products_backward",
        "grad_x:gg_gx grad_y:gg_gy",
        "x:grad_x_extra y:grad_y_extra g_xy:grad_g_xy_extra g_xx:grad_g_xx_extra g_yy:grad_g_yy_extra",
    ),
    "segmented_axpy_backward": adjoint("segmented_axpy", "y:g_out", "y:grad_y_in x:grad_x a:grad_a"),
    "segmented_axpy_double_backward": adjoint(
        "segmented_axpy_backward",
        "grad_y_in:gg_gy_in grad_x:gg_gx grad_a:gg_ga",
        "g_out:grad_g_out x:grad_x_extra a:grad_a_extra",
    ),
    "segmented_axpby_backward": adjoint("segmented_axpby", "out:g_out", "x:grad_x y:grad_y a:grad_a b:grad_b"),
    "segmented_axpby_double_backward": adjoint(
        "segmented_axpby_backward",
        "grad_x:gg_gx grad_y:gg_gy grad_a:gg_ga grad_b:gg_gb",
        "g_out:grad_g_out x:grad_x_extra y:grad_y_extra a:grad_a_extra b:grad_b_extra",
    ),
    "segmented_mean_backward": adjoint("segmented_mean", "out:g_out", "x:grad_x"),
    "segmented_mean_double_backward": adjoint("segmented_mean_backward", "grad_x:gg_x", "g_out:grad_g_out"),
    "segmented_rms_norm_backward": adjoint("segmented_rms_norm_forward_precompute", "out:g_out", "x:grad_x"),
    "segmented_rms_norm_double_backward": adjoint(
        "segmented_rms_norm_backward", "grad_x:gg_x", "g_out:grad_g_out_extra x:grad_x_extra"
    ),
    "segmented_max_norm_backward": adjoint("segmented_max_norm_forward_precompute", "out:g_out", "x:grad_x"),
    "segmented_max_norm_double_backward": adjoint(
        "segmented_max_norm_backward", "grad_x:gg_gx", "g_out:grad_g_out x:grad_x_extra"
    ),
    "segmented_matvec_backward": adjoint("segmented_matvec", "out:g_out", "v:grad_v m:grad_M"),
    "segmented_matvec_double_backward": adjoint(
        "segmented_matvec_backward",
        "grad_v:gg_gv grad_M:gg_gM",
        "g_out:grad_g_out v:grad_v_extra m:grad_M_extra",
    ),
    "segment_div_backward": adjoint("segment_div", "result:g_result", "numerator:grad_numerator"),
    "segment_div_double_backward": adjoint(
        "segment_div_backward", "grad_numerator:gg_numerator", "g_result:grad_g_result"
    ),
}


def test_every_backward_has_a_primal():
    assert set(ADJOINTS) == {name for name in INTERFACE if name.endswith("backward")}


def refresh(values, idx, m):
    """What the forward operation leaves for the backward ones, for these data."""
    if "inv_norm" in values:
        made = call("segmented_rms_norm_forward_precompute", {"x": values["x"]}, idx, m, 3, np.float64)
        values |= {"inv_norm": made["inv_norm"]}
    if "argmax_idx" in values:
        values |= {"argmax_idx": Segments(idx, m).argmax(values["x"])}
    return values


@pytest.mark.parametrize("way", ["engine", "kernels"])
@pytest.mark.parametrize("name", ADJOINTS)
def test_finite_differences(name, way):
    m = 7
    idx = np.array([-1, *sorted_idx(30, m - 1), m], dtype=np.int32)
    idx[idx == 2] = 3  # an empty segment
    rule = ADJOINTS[name]
    rng = np.random.default_rng(5)
    for width in widths(name):
        values = make_inputs(name, idx, m, width, np.float64, seed=9)
        for argument in inputs_of(rule.primal):
            values.setdefault(argument, make_inputs(rule.primal, idx, m, width, np.float64, seed=10).get(argument))
        values = refresh(values, idx, m)
        with route(way):
            gradients = call(name, values, idx, m, width, np.float64)

            def loss(point, values=values, width=width):
                point = refresh(point, idx, m)
                primal = {a: point[a] for a in inputs_of(rule.primal)}
                outputs = call(rule.primal, primal, idx, m, width, np.float64)
                return sum((outputs[o].ravel() * values[c].ravel()).sum() for o, c in rule.cotangents.items())

            for argument, gradient in rule.gradients.items():
                direction = rng.uniform(-1, 1, values[argument].shape)
                h = 1e-5
                up = loss({**values, argument: values[argument] + h * direction})
                down = loss({**values, argument: values[argument] - h * direction})
                expected = (gradients[gradient].ravel() * direction.ravel()).sum()
                np.testing.assert_allclose((up - down) / (2 * h), expected, rtol=2e-7, atol=2e-7, err_msg=argument)
                assert np.abs(gradients[gradient]).max() > 0.01
