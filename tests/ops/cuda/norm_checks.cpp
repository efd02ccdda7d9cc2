// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <stdexcept>

#include "draftsmith/base/error.h"
#include "draftsmith/ops/storage.h"

#include "tests/ops/cuda/kernel_place.h"
#include "tests/support/random_tensor.h"

namespace draftsmith::testing {
namespace {

using torch::Tensor;

constexpr torch::ScalarType kDtypes[] = {torch::kBFloat16, torch::kFloat, torch::kDouble};
constexpr int64_t kWidths[] = {
    1, 128, 333, 1030, 1040};  // a warp or a block a row; 16 bytes or not
constexpr double kEps = 1e-3;

struct Case {
  Tensor x, weight, gate, out_gradient;
};

Case make_case(int64_t rows, int64_t width, torch::ScalarType dtype) {
  return {
      random_normal({rows, width}, 1).to(dtype), random_normal({width}, 2).to(dtype),
      (5 * random_normal({rows, width}, 3)).to(dtype), random_normal({rows, width}, 4).to(dtype)};
}

enum class Kind { kPlain, kZeroCentred, kGated };

/// The normed rows and their scales.
std::pair<Tensor, Tensor> run(KernelPlace& place, const Case& c, Kind kind) {
  const auto x = c.x.to(place.device()), weight = c.weight.to(place.device());
  const auto gate = c.gate.to(place.device());
  auto out = torch::full_like(x, 99);
  auto scale = torch::zeros({x.size(0)}, x.options().dtype(torch::kDouble));
  place.run(ops::RmsNormParams{
      .storage = ops::storage_of(x),
      .x = x.const_data_ptr(),
      .weight = weight.const_data_ptr(),
      .rows = x.size(0),
      .width = x.size(1),
      .eps = kEps,
      .out = out.data_ptr(),
      .scale = kind == Kind::kPlain ? scale.data_ptr<double>() : nullptr,
      .is_zero_centred = kind == Kind::kZeroCentred,
      .gate = kind == Kind::kGated ? gate.const_data_ptr() : nullptr});
  return {out, scale};
}

/// Gradients of x and weight.
std::pair<Tensor, Tensor> run_gradient(KernelPlace& place, const Case& c, const Tensor& scales) {
  const auto x = c.x.to(place.device()), weight = c.weight.to(place.device());
  const auto gradient = c.out_gradient.to(place.device()), scale = scales.to(place.device());
  auto x_gradient = torch::full_like(x, 99);
  auto weight_gradient = torch::full({x.size(1)}, 99, x.options().dtype(torch::kDouble));
  place.run(ops::RmsNormGradientParams{
      .storage = ops::storage_of(x),
      .x = x.const_data_ptr(),
      .weight = weight.const_data_ptr(),
      .scale = scale.const_data_ptr<double>(),
      .out_gradient = gradient.const_data_ptr(),
      .rows = x.size(0),
      .width = x.size(1),
      .x_gradient = x_gradient.data_ptr(),
      .weight_gradient = weight_gradient.data_ptr<double>()});
  return {x_gradient, weight_gradient};
}

void check_forward(KernelPlace& place) {
  CpuPlace cpu;
  for (const auto dtype : kDtypes) {
    for (const int64_t width : kWidths) {
      const auto c = make_case(9, width, dtype);
      for (const Kind kind : {Kind::kPlain, Kind::kZeroCentred, Kind::kGated}) {
        const auto what =
            fmt::format("{} width {} kind {}", c10::toString(dtype), width, static_cast<int>(kind));
        const auto [got, got_scale] = run(place, c, kind);
        const auto [wanted, wanted_scale] = run(cpu, c, kind);
        // Two roundings to bfloat16 may each fall the other way; 1 + weight may be near 0.
        require_close(
            got, wanted, 2 * rounding_of(dtype), dtype == torch::kDouble ? 1e-14 : 1e-6, what);
        require_roundings(got, wanted, what);
        require_close(
            got_scale, wanted_scale, dtype == torch::kDouble ? 1e-13 : 1e-6, 0, what + " scale");
      }
    }
  }
}

void check_gradient(KernelPlace& place) {
  CpuPlace cpu;
  for (const auto dtype : kDtypes) {
    for (const int64_t width : kWidths) {
      const int64_t rows = width > 1000 ? 66 : 130;  // several blocks, the last ragged
      const auto c = make_case(rows, width, dtype);
      const auto what = fmt::format("{} width {}", c10::toString(dtype), width);
      const auto scales = run(cpu, c, Kind::kPlain).second;
      const auto [got_x, got_weight] = run_gradient(place, c, scales);
      const auto [wanted_x, wanted_weight] = run_gradient(cpu, c, scales);
      const double precision = dtype == torch::kDouble ? 1e-12 : 1e-5;
      require_close(got_x, wanted_x, rounding_of(dtype), precision, what + " x");
      // Terms of size 1 whose sum may be near 0.
      require_close(
          got_weight, wanted_weight, precision, precision * static_cast<double>(rows),
          what + " weight");
      require_same(run_gradient(place, c, scales).second, got_weight, what + " weight, once more");
    }
  }
}

void check_refusal_of_wide_rows(KernelPlace& place) {
  const auto c = make_case(1, 26000, torch::kFloat);
  const auto [out, scales] = run(place, c, Kind::kZeroCentred);
  try {
    run_gradient(place, c, scales);
  } catch (const ShapeError&) {
    return;
  }
  throw std::runtime_error("expected a ShapeError, got none");
}

}  // namespace

std::vector<KernelCheck> norm_checks() {
  return {
      {"RmsNormHasTheValuesOfTheCpu", check_forward},
      {"RmsNormHasTheGradientsOfTheCpuInOneOrder", check_gradient},
      {"RmsNormRefusesGradientsOfRowsBeyondSharedMemory", check_refusal_of_wide_rows}};
}

}  // namespace draftsmith::testing
